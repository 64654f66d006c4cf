//! Probes as perf events: made through tracefs, then opened as the tracepoints they become.
//!
//! The commands are those of Documentation/trace/kprobetrace.rst, uprobetracer.rst and
//! fprobetrace.rst.

use std::fs::{OpenOptions, read_to_string};
use std::io::{ErrorKind, Write};
use std::path::Path;

use unwindlab_abi::EventSource;

use super::PerfError;
use crate::chain;
use crate::mapped_file;

/// The system under tracefs' `events` that they are made in.
pub(super) const SYSTEM: &str = "unwindlab";

/// A probe that is to be made.
struct Probe {
    /// The file of tracefs that takes the command.
    file: &'static str,
    /// The command's first letter.
    letter: char,
    /// The place, as the command takes it.
    place: String,
    /// As messages call it.
    called: String,
}

/// Makes the probe of a source. `number` tells it from the other events of the plan. Returns the
/// name of its tracepoint in [`SYSTEM`]; `None` for a source that is no probe.
///
/// # Errors
/// [`PerfError::NoProbes`] where the kernel lacks this kind of probe, [`PerfError::Probe`] where it
/// does not take this one.
pub(super) fn make(
    tracefs: &Path,
    source: &EventSource,
    number: u32,
) -> Result<Option<String>, PerfError> {
    let Some(probe) = probe(source)? else {
        return Ok(None);
    };
    let missing = || PerfError::NoProbes {
        place: probe.called.clone(),
    };
    // Kernels without fprobe events may have the file for the others.
    if probe.letter == 'f' && !takes_fprobes(tracefs) {
        return Err(missing());
    }
    let name = format!("{}{number}", probe.letter);
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound if !tracefs.join(probe.file).exists() => missing(),
        _ => PerfError::Probe {
            place: probe.called.clone(),
            why: last_error(tracefs)
                .map(|why| format!(": {why}"))
                .unwrap_or_default(),
            source,
        },
    };
    // Each write to this file is a command; without append the kernel removes all others first.
    let mut commands = OpenOptions::new()
        .append(true)
        .open(tracefs.join(probe.file))
        .map_err(failed)?;
    let command = format!("{}:{SYSTEM}/{name} {}\n", probe.letter, probe.place);
    commands.write_all(command.as_bytes()).map_err(failed)?;
    Ok(Some(name))
}

fn probe(source: &EventSource) -> Result<Option<Probe>, PerfError> {
    let (file, letter, place, called) = match source {
        EventSource::Kprobe {
            function,
            at_return: true,
            ..
        } => {
            let called = format!("kretprobe on {function}");
            ("kprobe_events", 'r', function.clone(), called)
        }
        EventSource::Kprobe {
            function, offset, ..
        } => {
            let place = plus(function, *offset);
            let called = format!("kprobe on {place}");
            ("kprobe_events", 'p', place, called)
        }
        EventSource::Fprobe {
            function,
            at_return,
        } => {
            let place = match at_return {
                true => format!("{function}%return"),
                false => function.clone(),
            };
            let called = format!("fprobe on {place}");
            ("dynamic_events", 'f', place, called)
        }
        EventSource::Uprobe {
            symbol,
            offset,
            at_return,
        } => {
            let (kind, letter) = match at_return {
                true => ("uretprobe", 'r'),
                false => ("uprobe", 'p'),
            };
            let called = format!("{kind} on {}", plus(symbol, *offset));
            let place = in_file(symbol, *offset, &called)?;
            ("uprobe_events", letter, place, called)
        }
        _ => return Ok(None),
    };
    Ok(Some(Probe {
        file,
        letter,
        place,
        called,
    }))
}

/// `FILE:OFFSET` of the workload's code: a uprobe is a place in a file.
fn in_file(symbol: &str, offset: u64, called: &str) -> Result<String, PerfError> {
    let refused = |why: &str| PerfError::Probe {
        place: called.to_owned(),
        why: String::new(),
        source: std::io::Error::other(why.to_owned()),
    };
    let symbols = chain::symbols();
    let found = symbols.iter().find(|it| it.name == symbol);
    let found = found.ok_or_else(|| refused("the workloads have no such symbol"))?;
    let address = found.start.checked_add(offset).filter(|it| *it < found.end);
    let address = address.ok_or_else(|| refused("the offset is beyond the symbol's end"))?;
    let mapped = mapped_file::of(address).map_err(|error| refused(&error.to_string()))?;
    let (file, at) = mapped.ok_or_else(|| refused("its code is in no file"))?;
    Ok(format!("{file}:{at:#x}"))
}

fn plus(symbol: &str, offset: u64) -> String {
    match offset {
        0 => symbol.to_owned(),
        _ => format!("{symbol}+{offset:#x}"),
    }
}

/// Whether the kernel has fprobe events: its own description of tracefs says so.
fn takes_fprobes(tracefs: &Path) -> bool {
    let readme = read_to_string(tracefs.join("README"));
    readme.is_ok_and(|text| text.contains(" f[:[<group>/]"))
}

/// What the kernel says about the last command that it refused.
fn last_error(tracefs: &Path) -> Option<String> {
    let log = read_to_string(tracefs.join("error_log")).ok()?;
    let line = log.lines().rfind(|line| line.contains(": error: "))?;
    let (_, what) = line.split_once(": error: ")?;
    Some(what.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kprobe(function: &str, offset: u64, at_return: bool) -> EventSource {
        EventSource::Kprobe {
            function: function.to_owned(),
            offset,
            at_return,
            optimized: false,
        }
    }

    fn fprobe(at_return: bool) -> EventSource {
        EventSource::Fprobe {
            function: "unwind_user".to_owned(),
            at_return,
        }
    }

    fn uprobe(symbol: &str, offset: u64) -> EventSource {
        EventSource::Uprobe {
            symbol: symbol.to_owned(),
            offset,
            at_return: false,
        }
    }

    fn tracefs(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("unwindlab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn commands_are_those_of_the_documentation() {
        let dir = tracefs("probes");
        let none = make(&dir, &kprobe("unwind_user", 0, false), 0).unwrap_err();
        for file in ["kprobe_events", "uprobe_events", "dynamic_events"] {
            std::fs::write(dir.join(file), "").unwrap();
        }
        let no_fprobes = make(&dir, &fprobe(false), 0).unwrap_err();
        std::fs::write(dir.join("README"), "\t           f[:[<group>/][<event>]] x").unwrap();
        let sources = [
            kprobe("unwind_user", 0, false),
            kprobe("unwind_user", 0x1f, false),
            kprobe("task_work_run", 0, true),
            fprobe(false),
            fprobe(true),
            uprobe("deep_call", 0),
        ];
        let names: Vec<_> = (0..)
            .zip(&sources)
            .map(|(number, source)| make(&dir, source, number).unwrap().unwrap())
            .collect();
        let read = |file| read_to_string(dir.join(file)).unwrap();
        let (kprobes, uprobes, fprobes) = (
            read("kprobe_events"),
            read("uprobe_events"),
            read("dynamic_events"),
        );
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(none.is_unsupported() && no_fprobes.is_unsupported());
        assert_eq!(names, ["p0", "p1", "r2", "f3", "f4", "p5"]);
        assert_eq!(
            kprobes,
            "p:unwindlab/p0 unwind_user\np:unwindlab/p1 unwind_user+0x1f\n\
             r:unwindlab/r2 task_work_run\n"
        );
        assert_eq!(
            fprobes,
            "f:unwindlab/f3 unwind_user\nf:unwindlab/f4 unwind_user%return\n"
        );
        // The code of this test program is in its file.
        let program = std::env::current_exe().unwrap();
        let start = format!("p:unwindlab/p5 {}:0x", program.display());
        assert!(uprobes.starts_with(&start), "{uprobes}");
    }

    #[test]
    fn a_place_outside_the_workloads_code_is_refused() {
        let dir = tracefs("no-place");
        std::fs::write(dir.join("uprobe_events"), "").unwrap();
        let errors = [uprobe("nowhere", 0), uprobe("deep_call", 0x1000)]
            .map(|source| make(&dir, &source, 0).unwrap_err());
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            errors.map(|error| error.to_string()),
            [
                "this kernel takes no uprobe on nowhere: the workloads have no such symbol",
                "this kernel takes no uprobe on deep_call+0x1000: the offset is beyond the \
                 symbol's end",
            ]
        );
    }

    #[test]
    fn the_kernels_own_words_are_in_the_message() {
        let dir = tracefs("refused");
        // Opening a folder for writing fails.
        std::fs::create_dir_all(dir.join("kprobe_events")).unwrap();
        std::fs::write(
            dir.join("error_log"),
            "[    1.0] trace_kprobe: error: First\n  Command: p:a b\n             ^\n\
             [    2.0] trace_kprobe: error: This is not a probe point\n  Command: p:c d\n",
        )
        .unwrap();
        let error = make(&dir, &kprobe("do_nmi", 0, false), 0).unwrap_err();
        std::fs::remove_dir_all(&dir).unwrap();
        let message = error.to_string();
        assert!(
            message.ends_with(": This is not a probe point")
                && message.starts_with("this kernel takes no kprobe on do_nmi: "),
            "{message}"
        );
    }

    #[test]
    fn what_is_no_probe_is_left_to_others() {
        let made = make(Path::new("/nowhere"), &EventSource::Dummy, 0);
        assert_eq!(made.unwrap(), None);
    }
}
