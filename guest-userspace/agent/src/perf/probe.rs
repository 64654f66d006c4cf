//! Kprobes as perf events: made through tracefs, then opened as the tracepoints they become.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use super::PerfError;

/// The system under tracefs' `events` that they are made in.
pub(super) const SYSTEM: &str = "unwindlab";

/// Makes the probe; returns the name of its tracepoint in [`SYSTEM`].
///
/// # Errors
/// [`PerfError::NoTracepoint`] where the kernel has no kprobe events, [`PerfError::Probe`] where
/// it does not take this one.
pub(super) fn make(tracefs: &Path, function: &str, at_return: bool) -> Result<String, PerfError> {
    let kind = if at_return { 'r' } else { 'p' };
    let name = format!("{kind}_{function}");
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => PerfError::NoTracepoint {
            system: "kprobes".to_owned(),
            name: function.to_owned(),
        },
        _ => PerfError::Probe {
            function: function.to_owned(),
            source,
        },
    };
    // Each write to this file is a command (Documentation/trace/kprobetrace.rst); without append
    // the kernel removes all others first.
    let mut commands = OpenOptions::new()
        .append(true)
        .open(tracefs.join("kprobe_events"))
        .map_err(failed)?;
    let command = format!("{kind}:{SYSTEM}/{name} {function}\n");
    commands.write_all(command.as_bytes()).map_err(failed)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_kprobetrace() {
        let dir = std::env::temp_dir().join(format!("unwindlab-probe-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let none = make(&dir, "unwind_user", false).unwrap_err();
        std::fs::write(dir.join("kprobe_events"), "").unwrap();
        let names = [
            make(&dir, "unwind_user", false).unwrap(),
            make(&dir, "task_work_run", true).unwrap(),
        ];
        let written = std::fs::read_to_string(dir.join("kprobe_events")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(none.is_unsupported());
        assert_eq!(names, ["p_unwind_user", "r_task_work_run"]);
        assert_eq!(
            written,
            "p:unwindlab/p_unwind_user unwind_user\nr:unwindlab/r_task_work_run task_work_run\n"
        );
    }
}
