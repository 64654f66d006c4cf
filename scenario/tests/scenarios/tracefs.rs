//! The `tracefs` part: what it becomes, what is wrong with it, and kernels without the option.

use unwindlab_abi::tracefs::ChurnKind;

use super::{Kernel, MINIMAL, complaints, load};
use unwindlab_scenario::{ResolveError, resolve};

/// The minimal scenario on two CPUs, with this below `tracefs`.
fn with(tracefs: &str) -> String {
    format!("{MINIMAL}machine: {{ vcpus: 2 }}\ntracefs:\n{tracefs}")
}

#[test]
fn everything_written_is_resolved() {
    let text = with(
        "  instances:
    - { name: a, events: ['sched:sched_switch', 'nmi:nmi_handler'], buffer: 64 }
    - name: b
  churn: { cpu: 1, every: 2 ms, what: swap }
",
    );
    let mut kernel = Kernel::new();
    kernel
        .0
        .insert("__trace_unwind_request", vec![(0xffff_ffff_8500_0000, 8)]);
    let plan = resolve("x.yaml", &load(&text).unwrap(), &kernel, "hash").unwrap();
    let tracefs = plan.guest.tracefs.unwrap();
    let [a, b] = &tracefs.instances[..] else {
        panic!("two instances");
    };
    assert_eq!(
        (a.name.as_str(), a.events.len(), a.buffer_kib),
        ("a", 2, 64)
    );
    assert_eq!(a.events[0], ("sched".to_owned(), "sched_switch".to_owned()));
    assert_eq!(b.events, [("nmi".to_owned(), "nmi_handler".to_owned())]);
    let churn = tracefs.churn.unwrap();
    let found = (churn.cpu, churn.period_us, churn.what);
    assert_eq!(found, (1, 2000, ChurnKind::Swap));
}

#[test]
fn what_is_wrong_is_said() {
    let text = with(
        "  instances:
    - { name: ../x, events: ['sched/../x'], buffer: 4 }
    - name: b
    - name: b
  churn: { cpu: 2, every: 10 us, what: option }
",
    );
    let found = complaints(&text).join("\n");
    for said in [
        "found instance `../x`",
        "found event `sched/../x`, expected `system:name`",
        "found 4 KiB, expected 8 to 16384",
        "found instance `b` twice",
        "found CPU 2, expected one of the machine's 2",
        "found 10 us, expected 100 us or more",
    ] {
        assert!(found.contains(said), "{said}: {found}");
    }
}

#[test]
fn a_kernel_without_the_option_is_a_skip() {
    let text = with("  instances: [{ name: a }]\n");
    let found = resolve("x.yaml", &load(&text).unwrap(), &Kernel::new(), "hash");
    let Err(ResolveError::Unsupported(lack)) = found else {
        panic!("{found:?}");
    };
    assert!(lack.to_string().contains("tracefs-stack"), "{lack}");
}
