//! What events are called.

use unwindlab_abi::{EventSource, Watch};

use super::{Kernel, MINIMAL, load};
use unwindlab_scenario::resolve;

const ADDRESS: u64 = 0xffff_ffff_8600_0000;

/// What the event of this name becomes.
fn found(name: &str) -> Result<EventSource, String> {
    let ring = if name.starts_with("mem:task.") {
        ", output-to: ring"
    } else {
        ""
    };
    let text = format!(
        "{MINIMAL}perf:\n  events:\n    - {{ name: ring, event: dummy }}\n    - {{ name: n, event: \"{name}\"{ring} }}\n"
    );
    let scenario = load(&text).map_err(|errors| errors.to_string())?;
    let mut kernel = Kernel::new();
    for function in ["a", "a.isra.0", "jiffies", "unwind_user"] {
        kernel.0.insert(function, vec![(ADDRESS, 0x100)]);
    }
    let plan = resolve("x.yaml", &scenario, &kernel, "hash").map_err(|error| error.to_string())?;
    let [_, event] = plan.guest.tracing.events.as_slice() else {
        panic!("two events: {:?}", plan.guest.tracing.events);
    };
    Ok(event.source.clone())
}

fn kprobe(function: &str, offset: u64, at_return: bool, optimized: bool) -> EventSource {
    EventSource::Kprobe {
        function: function.to_owned(),
        offset,
        at_return,
        optimized,
    }
}

#[test]
fn probes() {
    let cases = [
        ("kprobe:unwind_user", kprobe("unwind_user", 0, false, false)),
        ("kprobe:a.isra.0+0x10", kprobe("a.isra.0", 16, false, false)),
        ("optprobe:a+16", kprobe("a", 16, false, true)),
        ("kretprobe:a", kprobe("a", 0, true, false)),
        // Behind `endbr64`.
        ("kprobe:a+body", kprobe("a", 4, false, false)),
    ];
    for (name, expected) in cases {
        assert_eq!(found(name), Ok(expected), "{name}");
    }
    let fprobe = |at_return| EventSource::Fprobe {
        function: "a".to_owned(),
        at_return,
    };
    assert_eq!(found("fprobe:a"), Ok(fprobe(false)));
    assert_eq!(found("fprobe:a%return"), Ok(fprobe(true)));
    let uprobe = |symbol: &str, offset, at_return| EventSource::Uprobe {
        symbol: symbol.to_owned(),
        offset,
        at_return,
    };
    assert_eq!(
        found("uprobe:deep_leaf+4"),
        Ok(uprobe("deep_leaf", 4, false))
    );
    assert_eq!(found("uretprobe:descend"), Ok(uprobe("descend", 0, true)));
}

#[test]
fn breakpoints() {
    let data = |offset, watch| EventSource::Breakpoint {
        address: ADDRESS + offset,
        watch,
    };
    let field = |watch| EventSource::TaskField {
        offset: 0x28,
        watch,
    };
    let cases = [
        ("breakpoint:a+4", data(4, Watch::Execute)),
        ("mem:jiffies", data(0, Watch::ReadWrite(8))),
        ("mem:a+0x8/4:w", data(8, Watch::Write(4))),
        ("mem:a/1", data(0, Watch::ReadWrite(1))),
        ("mem:task.unwind_info.id/4:w", field(Watch::Write(4))),
        ("mem:task.unwind_info.id:rw", field(Watch::ReadWrite(8))),
    ];
    for (name, expected) in cases {
        assert_eq!(found(name), Ok(expected), "{name}");
    }
}

#[test]
fn what_is_no_source_is_refused() {
    for name in [
        "",
        "nmi",
        "nmi:",
        ":x",
        "nmi:a b",
        "kprobe:",
        "kprobe:a+",
        "kretprobe:a+4",
        "fprobe:a+4",
        "fprobe:%return",
        "uretprobe:descend+4",
        "mem:",
        "mem:a:r",
        "mem:a:x",
        "mem:task.",
        "mem:task.a..b",
        "mem:task.a b",
        "breakpoint:4",
    ] {
        let message = found(name).unwrap_err();
        assert!(
            message.contains("expected a tracepoint such as"),
            "{name}: {message}"
        );
    }
    let place = "dir/x.yaml:9:25: ";
    let message = |name| found(name).unwrap_err().replace(place, "");
    let bytes = "found a breakpoint on 3 bytes, expected 1, 2, 4 or 8";
    assert_eq!(message("mem:a/3"), bytes);
    let nowhere = message("uprobe:nowhere");
    assert!(nowhere.starts_with("the workloads have no symbol `nowhere`, expected one of root"));
    for name in ["uretprobe:exit_leaf", "uretprobe:deep_call"] {
        assert!(
            message(name).contains("is no function that returns"),
            "{name}"
        );
    }
}
