//! Whether the kernel replaces the breakpoints of kprobes by jumps.
//!
//! Some time after a kprobe was set, the kernel does so where it can (`CONFIG_OPTPROBES`). A
//! breakpoint's handler runs as an NMI's does (`in_nmi()`), that of a jump in the context of the
//! code: so a plan says which, and does not leave it to the time.

use std::path::Path;
use std::time::{Duration, Instant};

use unwindlab_abi::{EventSource, EventSpec, Tracing};

use super::PerfError;
use crate::system;

/// Under `/proc/sys`.
pub(super) const SYSCTL: &str = "debug/kprobes-optimization";
/// How long to wait for the kernel. It waits five jiffies, and until every task has scheduled.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Has the kernel replace breakpoints if an event wants it, and otherwise none.
pub(super) fn prepare(tracing: &Tracing) -> Result<(), PerfError> {
    let probes = |wanted| {
        tracing.events.iter().any(
            move |spec| matches!(spec.source, EventSource::Kprobe { optimized, .. } if optimized == wanted),
        )
    };
    let is_there = system::sysctl_path(SYSCTL).exists();
    let value = match (probes(true), probes(false)) {
        (true, _) if !is_there => return Err(PerfError::NoOptimizedProbes),
        (true, _) => "1",
        (false, true) if is_there => "0",
        _ => return Ok(()),
    };
    system::sysctl(SYSCTL, value).map_err(|error| PerfError::Kprobes(std::io::Error::other(error)))
}

/// Waits until the kernel has replaced the breakpoints that it is to replace: those of all kprobes.
pub(super) fn wait(tracing: &Tracing) -> Result<(), PerfError> {
    let wanted = |spec: &EventSpec| {
        matches!(
            spec.source,
            EventSource::Kprobe {
                optimized: true,
                ..
            }
        )
    };
    if !tracing.events.iter().any(wanted) {
        return Ok(());
    }
    let debugfs = system::mount_debugfs()
        .map_err(|error| PerfError::Kprobes(std::io::Error::other(error)))?;
    wait_for(&debugfs.join("kprobes/list"), PATIENCE)
}

fn wait_for(list: &Path, patience: Duration) -> Result<(), PerfError> {
    let until = Instant::now() + patience;
    loop {
        let text = std::fs::read_to_string(list).map_err(PerfError::Kprobes)?;
        let Some(place) = not_optimized(&text) else {
            return Ok(());
        };
        if Instant::now() >= until {
            return Err(PerfError::NotOptimized { place });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A kprobe that is not optimised, as the kernel shows it. A line: address, kind, symbol+offset,
/// and what holds for it (`report_probe`, kernel/kprobes.c); of several symbols at one address the
/// kernel shows any.
fn not_optimized(list: &str) -> Option<String> {
    if list.trim().is_empty() {
        return Some("any instruction".to_owned());
    }
    let line = list.lines().find(|line| !line.contains("[OPTIMIZED]"))?;
    let words: Vec<_> = line.split_whitespace().skip(2).collect();
    Some(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_when_all_are_optimised_the_wait_ends() {
        let list = std::env::temp_dir().join(format!("unwindlab-kprobes-{}", std::process::id()));
        let optimised = "ffffffff81000010  k  unwind_user+0x10    [OPTIMIZED]\n";
        let by_ftrace = "ffffffff81000100  k  task_work_run+0x0    [FTRACE]\n";
        let wait = |text: &str| {
            std::fs::write(&list, text).unwrap();
            wait_for(&list, Duration::ZERO)
        };
        let results = [optimised, &format!("{optimised}{by_ftrace}"), ""].map(wait);
        std::fs::remove_file(&list).unwrap();
        let [optimised, mixed, none] = results;
        assert!(optimised.is_ok());
        for (error, place) in [
            (mixed, "task_work_run+0x0 [FTRACE]"),
            (none, "any instruction"),
        ] {
            let message = error.unwrap_err().to_string();
            assert!(
                message.contains(&format!("the kprobe on {place} in")),
                "{message}"
            );
        }
        let no_list = wait_for(&list, Duration::ZERO);
        assert!(matches!(no_list, Err(PerfError::Kprobes(_))), "{no_list:?}");
    }
}
