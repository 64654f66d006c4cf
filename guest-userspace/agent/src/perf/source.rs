//! What `perf_event_open` takes for a source.

use std::path::{Component, Path};

use unwindlab_abi::EventSource;

use super::PerfError;
use super::attr::{COUNT_SW_DUMMY, TYPE_BREAKPOINT, TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_TRACEPOINT};
use super::dynamic;

/// `type` and `config` of a source, made first if it is a probe. `number` tells it from the other
/// events of the plan.
pub(super) fn resolve(
    source: &EventSource,
    number: u32,
    tracefs: &Path,
) -> Result<(u32, u64), PerfError> {
    let (system, name) = match source {
        EventSource::Dummy => return Ok((TYPE_SOFTWARE, COUNT_SW_DUMMY)),
        EventSource::Software(number) => return Ok((TYPE_SOFTWARE, *number)),
        EventSource::Hardware(number) => return Ok((TYPE_HARDWARE, *number)),
        EventSource::Breakpoint { .. } | EventSource::TaskField { .. } => {
            return Ok((TYPE_BREAKPOINT, 0));
        }
        EventSource::Tracepoint { system, name } => (system.as_str(), name.clone()),
        EventSource::Kprobe { .. } | EventSource::Fprobe { .. } | EventSource::Uprobe { .. } => {
            let name = dynamic::make(tracefs, source, number)?;
            (dynamic::SYSTEM, name.unwrap_or_default())
        }
    };
    let id = tracepoint_id(tracefs, system, &name)?;
    Ok((TYPE_TRACEPOINT, id))
}

fn tracepoint_id(tracefs: &Path, system: &str, name: &str) -> Result<u64, PerfError> {
    let is_name = |text| {
        let mut parts = Path::new(text).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == text)
    };
    let missing = || PerfError::NoTracepoint {
        system: system.to_owned(),
        name: name.to_owned(),
    };
    let unreadable = |source| PerfError::Tracepoint {
        system: system.to_owned(),
        name: name.to_owned(),
        source,
    };
    if !is_name(system) || !is_name(name) {
        return Err(missing());
    }
    let path = tracefs.join("events").join(system).join(name).join("id");
    match std::fs::read_to_string(path) {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|error| unreadable(std::io::Error::other(error))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(missing()),
        Err(error) => Err(unreadable(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracepoint_is_found_by_name_and_nothing_else_is() {
        let dir = std::env::temp_dir().join(format!("unwindlab-agent-{}", std::process::id()));
        let event = dir.join("events/nmi/nmi_handler");
        std::fs::create_dir_all(&event).unwrap();
        std::fs::write(event.join("id"), "471\n").unwrap();
        let nmi = tracepoint_id(&dir, "nmi", "nmi_handler");
        let missing = [
            "nmi_gone",
            "",
            ".",
            "..",
            "../nmi/nmi_handler",
            "nmi_handler/",
        ]
        .map(|name| tracepoint_id(&dir, "nmi", name));
        std::fs::write(event.join("id"), "no number").unwrap();
        let garbled = tracepoint_id(&dir, "nmi", "nmi_handler");
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(nmi.unwrap(), 471);
        for error in missing {
            assert!(error.unwrap_err().is_unsupported());
        }
        assert!(!garbled.unwrap_err().is_unsupported());
    }
}
