//! The events of tracefs, by the names that a trace shows.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The systems that have an event of a name.
#[derive(Debug, Default)]
pub(super) struct Events(BTreeMap<String, Vec<String>>);

impl Events {
    /// All events.
    pub(super) fn read(tracefs: &Path) -> io::Result<Self> {
        let mut events = Self::default();
        for system in folders(&tracefs.join("events"))? {
            for name in folders(&tracefs.join("events").join(&system))? {
                events.add(&system, &name);
            }
        }
        Ok(events)
    }

    /// One more.
    pub(super) fn add(&mut self, system: &str, name: &str) {
        let systems = self.0.entry(name.to_owned()).or_default();
        systems.push(system.to_owned());
    }

    /// The events that a trace shows so, as system and name: more than one where systems have
    /// events of the same name. System calls are shown as calls (kernel/trace/trace_syscalls.c):
    /// `sys_read(fd: 3, ...)` and `sys_read -> 0x1`.
    pub(super) fn shown(&self, text: &str) -> Vec<(&str, String)> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let name = match (word.strip_prefix("sys_"), rest) {
            (_, rest) if rest.starts_with(':') => word.to_owned(),
            (Some(call), rest) if rest.starts_with('(') => format!("sys_enter_{call}"),
            (Some(call), rest) if rest.starts_with(" ->") => format!("sys_exit_{call}"),
            _ => return Vec::new(),
        };
        let systems = self.0.get(&name).into_iter().flatten();
        systems.map(|it| (it.as_str(), name.clone())).collect()
    }
}

/// The names of the folders in a folder.
fn folders(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_found_by_what_a_trace_shows() {
        let mut events = Events::default();
        events.add("sched", "sched_switch");
        events.add("syscalls", "sys_enter_read");
        events.add("syscalls", "sys_exit_read");
        events.add("a", "twice");
        events.add("b", "twice");
        let of = |text| {
            let found = events.shown(text).into_iter();
            found.map(|(s, n)| format!("{s}:{n}")).collect::<Vec<_>>()
        };
        assert_eq!(of("sched_switch: prev_comm=x"), ["sched:sched_switch"]);
        assert_eq!(of("sys_read(fd: 3)"), ["syscalls:sys_enter_read"]);
        assert_eq!(of("sys_read -> 0x1"), ["syscalls:sys_exit_read"]);
        assert_eq!(of("twice: x"), ["a:twice", "b:twice"]);
        assert_eq!(of("unknown: x"), [""; 0]);
        assert_eq!(of(""), [""; 0]);
    }
}
