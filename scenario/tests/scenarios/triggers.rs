//! Exits as triggers, injections that follow several others, the guest's own breakpoints.

use unwindlab_abi::{EventSource, Watch};

use super::{Kernel, MINIMAL, complaints, load};
use unwindlab_engine::plan::{CodePlace, EventPlan, TrialPlan, TriggerPlan};
use unwindlab_engine::plan::{ExitKind, ExitPlan};
use unwindlab_scenario::resolve;

fn plan(text: &str) -> TrialPlan {
    resolve("x.yaml", &load(text).unwrap(), &Kernel::new(), "hash").unwrap()
}

fn on_exit(exit: &str) -> String {
    format!("{MINIMAL}inject:\n  - nmi: {{ on: {{ exit: {{ {exit} }} }} }}\n")
}

#[test]
fn an_exit_is_waited_for_by_kind_and_number() {
    let synthetic = on_exit("kind: wrmsr, number: 0xc0010004") + "machine: { pmu: synthetic }\n";
    for (text, kind, number) in [
        (
            on_exit("kind: out, number: 0x3f8"),
            ExitKind::Out,
            Some(0x3f8),
        ),
        (on_exit("kind: mmio-read"), ExitKind::MmioRead, None),
        (synthetic, ExitKind::Wrmsr, Some(0xc001_0004)),
    ] {
        if kind == ExitKind::Wrmsr {
            // Whether the kernel at hand has such counters is not the question.
            load(&text).unwrap();
            continue;
        }
        let event = EventPlan::Exit(ExitPlan { kind, number });
        let expected = TriggerPlan::Event {
            event,
            hit: 1,
            repeat: 1,
        };
        assert_eq!(plan(&text).injections[0].trigger, expected);
    }
}

#[test]
fn an_exit_that_never_comes_is_refused() {
    for (exit, expected) in [
        (
            "kind: halt",
            "found `halt`, which never leaves KVM: KVM waits for the interrupt itself",
        ),
        (
            "kind: in, number: 0x40",
            "found port 0x40, which KVM handles itself",
        ),
        (
            "kind: out, number: 65536",
            "found port 0x10000, expected at most 0xffff",
        ),
        (
            "kind: out, number: 0xd14",
            "found port 0xd14, which the harness uses itself: wait for it with `on: { mark: ... }`",
        ),
        (
            "kind: rdpmc",
            "found an access to counters, which KVM handles itself unless the machine has `pmu: synthetic`",
        ),
        (
            "kind: mmio-read, number: 0x1000",
            "found physical address 0x1000, which is RAM",
        ),
        (
            "kind: mmio-write, number: 0xfee000b0",
            "found physical address 0xfee000b0, an interrupt controller, which KVM handles itself",
        ),
    ] {
        assert_eq!(complaints(&on_exit(exit)), [format!("7:16: {expected}")]);
    }
    let msr = on_exit("kind: rdmsr, number: 0x10") + "machine: { pmu: synthetic }\n";
    let expected = "7:16: found MSR 0x10, which KVM handles itself; the counters are 0xc0010000 to 0xc0010007, \
         0xc1 to 0xc4, 0x186 to 0x189, 0x309 to 0x30b, 0x345, 0x38d to 0x390, 0x4c1 to 0x4c4";
    assert_eq!(complaints(&msr), [expected]);
}

fn after(names: &str) -> String {
    format!(
        "{MINIMAL}inject:\n  - nmi: {{ name: a, delay: 1 ms }}\n  - nmi: {{ name: b, delay: 2 ms }}\n  \
         - nmi: {{ after: {names} }}\n"
    )
}

#[test]
fn one_comes_after_one_or_after_all_of_several() {
    for (names, expected) in [("a", vec![0]), ("[b]", vec![1]), ("[a, b]", vec![0, 1])] {
        assert_eq!(plan(&after(names)).injections[2].after, expected);
    }
    let unknown = "9:19: found `c`, expected the name of an earlier injection (a, b)";
    assert_eq!(complaints(&after("[a, c]")), [unknown]);
    let none = "9:19: found no name, expected that of an earlier injection";
    assert_eq!(complaints(&after("[]")), [none]);
}

#[test]
fn a_breakpoint_of_the_guests_is_at_a_function_of_the_kernel() {
    let event = |name| {
        format!("{MINIMAL}perf:\n  events:\n    - {{ name: n, event: \"breakpoint:{name}\" }}\n")
    };
    let events = plan(&event("__x64_sys_getppid")).guest.tracing.events;
    let address = 0xffff_ffff_8200_0000;
    let watch = Watch::Execute;
    assert_eq!(events[0].source, EventSource::Breakpoint { address, watch });
    let unknown = load(&event("nowhere")).unwrap();
    let found = resolve("x.yaml", &unknown, &Kernel::new(), "hash").unwrap_err();
    assert_eq!(
        found.to_string(),
        "x.yaml:8:25: the kernel has no symbol `nowhere`"
    );
}

fn watch(keys: &str, others: &str) -> String {
    format!("{MINIMAL}inject:\n  - nmi: {{ at: {{ watch: {{ {keys} }} }}{others} }}\n")
}

fn watched(keys: &str) -> CodePlace {
    match &plan(&watch(keys, "")).injections[0].trigger {
        TriggerPlan::Arrival(arrival) => arrival.place.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_field_of_the_task_is_watched_where_the_kernel_has_it() {
    let field = |offset, bytes, reads| CodePlace::TaskField {
        offset,
        bytes,
        reads,
    };
    for (keys, expected) in [
        ("field: task.unwind_info.id", field(0x28, 8, false)),
        (
            "field: task.unwind_info.id/4, access: write",
            field(0x28, 4, false),
        ),
        (
            "field: task.comm/4, access: read-write",
            field(0x34, 4, true),
        ),
    ] {
        assert_eq!(watched(keys), expected, "{keys}");
    }
}

#[test]
fn a_field_that_cannot_be_watched_is_refused() {
    let refused = |kernel: &Kernel, keys: &str| {
        let scenario = load(&watch(keys, "")).unwrap();
        resolve("x.yaml", &scenario, kernel, "hash")
            .unwrap_err()
            .to_string()
    };
    for (keys, expected) in [
        ("field: task.unwind", "task_struct has no member `unwind`"),
        (
            "field: task.comm",
            "task_struct.comm has 16 bytes, expected how many of them to watch, such as `/8`",
        ),
        (
            "field: task.comm/8",
            "task.comm is not on a multiple of 8 bytes, which a breakpoint must be",
        ),
    ] {
        let told = refused(&Kernel::new(), keys);
        assert!(told.contains(expected), "{told}");
    }
    let mut kernel = Kernel::new();
    kernel.0.insert("stripped", Vec::new());
    let told = refused(&kernel, "field: task.unwind_info.id");
    assert!(
        told.contains("build it with CONFIG_DEBUG_INFO_BTF"),
        "{told}"
    );
}

#[test]
fn a_watch_takes_no_keys_of_an_instruction() {
    let id = "field: task.unwind_info.id";
    for (text, expected) in [
        (watch(id, ", times: 2"), "found key `times`, expected none"),
        (watch(id, ", sweep: true"), "found key `sweep`"),
        (watch(id, ", task: any"), "found key `task`, expected none"),
        (
            watch("field: unwind_info.id", ""),
            "expected a field of the task such as `task.unwind_info.id`",
        ),
        (
            watch("field: task.comm/3", ""),
            "expected a field of the task",
        ),
        (
            watch(&format!("{id}, access: read"), ""),
            "found `read`, expected one of `write`, `read-write`",
        ),
        (
            watch(id, "").replace("frames: 3", "frames: 3\n  threads: 5"),
            "5 fields of threads are watched, a CPU has 4 breakpoints",
        ),
        (
            format!(
                "{MINIMAL}schedule: {{ points: [{{ vcpu: 0, at: {{ watch: {{ {id} }} }} }}] }}\n"
            ),
            "found `watch`, expected an instruction",
        ),
    ] {
        let told = complaints(&text).join("\n");
        assert!(told.contains(expected), "{told}");
    }
    let all = ", thread: 1, in-nmi: true, hit: 2, repeat: 3, first: 4, vcpu: 0";
    load(&watch(id, all).replace("frames: 3", "frames: 3\n  threads: 5")).unwrap();
}
