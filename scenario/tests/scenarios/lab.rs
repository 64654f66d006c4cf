//! The `lab` part: what it becomes, what is wrong with it, and kernels without the client.

use unwindlab_abi::lab::{LabAsk, LabContext, LabPlan, LabPoint, SYMBOL};

use super::{Kernel, MINIMAL, complaints, load};
use unwindlab_scenario::{ResolveError, resolve};

/// The minimal scenario on two CPUs, with this below `lab`.
fn with(lab: &str) -> String {
    format!("{MINIMAL}machine: {{ vcpus: 2 }}\nlab:\n{lab}")
}

#[test]
fn everything_written_is_resolved() {
    let text = with(
        "  clients: 4
  ask:
    - at: sys-enter
    - { at: sys-exit, contexts: [nmi, task], clients: [0, 3], count: 2 }
  nested: { in: [1], clients: [2, 3] }
  poke: [{ from: 1, to: 0, context: hardirq, every: 1 ms }]
  churn: { cpu: 1, also-on: [0], clients: [0, 2, 3], every: 50 us }
  callback-delay: 20 us
",
    );
    let mut kernel = Kernel::new();
    kernel.0.insert(SYMBOL, vec![(0xffff_ffff_8500_0000, 8)]);
    let plan = resolve("x.yaml", &load(&text).unwrap(), &kernel, "hash").unwrap();
    let lab: LabPlan = plan.guest.lab.unwrap();
    let ask = |point: LabPoint| lab.ask[point.index()];
    let wanted = |clients, contexts, count| LabAsk {
        clients,
        contexts,
        count,
    };
    assert_eq!(ask(LabPoint::SysEnter), wanted(0b1111, 1, 1));
    assert_eq!(ask(LabPoint::SysExit), wanted(0b1001, 0b1001, 2));
    assert_eq!(ask(LabPoint::Nmi), LabAsk::default());
    assert_eq!(ask(LabPoint::Poke).clients, 0b1111);
    assert_eq!((lab.nested_in, lab.nested), (0b10, 0b1100));
    let poke = lab.pokes[0];
    assert_eq!((poke.from, poke.to, poke.count), (1, 0, 1));
    assert_eq!((poke.context, poke.period_us), (LabContext::Hardirq, 1000));
    let threads = lab.churn.iter();
    let threads: Vec<_> = threads
        .map(|it| (it.cpu, it.clients, it.period_us))
        .collect();
    assert_eq!(threads, [(1, 0b1001, 50), (0, 0b100, 50)]);
    assert_eq!((lab.callback_delay_us, lab.log_pages), (20, 2048));
    // Not a sample in every NMI: the client's handler would make it two.
    let [_, sampler] = plan.guest.tracing.events.as_slice() else {
        panic!("two events");
    };
    assert_eq!(sampler.name, "enter");
}

#[test]
fn a_place_is_one_of_the_kernel() {
    let text = with("  clients: 3\n  places: [{ kernel: f, clients: [1], count: 2 }]\n");
    let mut kernel = Kernel::new();
    kernel.0.insert(SYMBOL, vec![(0xffff_ffff_8500_0000, 8)]);
    let found = resolve("x.yaml", &load(&text).unwrap(), &kernel, "hash");
    let Err(ResolveError::Scenario(errors)) = found else {
        panic!("{found:?}");
    };
    assert!(errors.to_string().contains("no symbol `f`"), "{errors}");
    kernel.0.insert("f", vec![(0xffff_ffff_8500_1000, 8)]);
    let plan = resolve("x.yaml", &load(&text).unwrap(), &kernel, "hash").unwrap();
    let [place] = &plan.guest.lab.unwrap().places[..] else {
        panic!("one place");
    };
    assert_eq!((place.symbol.as_str(), place.offset), ("f", 0));
    assert_eq!((place.clients, place.count), (0b10, 2));
}

#[test]
fn a_kernel_without_the_client_is_a_skip() {
    let text = with("  clients: 1\n  ask: [{ at: nmi }]\n");
    let found = resolve("x.yaml", &load(&text).unwrap(), &Kernel::new(), "hash");
    let Err(ResolveError::Unsupported(lack)) = found else {
        panic!("{found:?}");
    };
    assert!(lack.to_string().contains("--source debian"), "{lack}");
}

#[test]
fn what_cannot_be_is_told() {
    for (lab, wanted) in [
        ("  clients: 0\n  ask: [{ at: nmi }]\n", "found 0 clients"),
        ("  clients: 65\n  ask: [{ at: nmi }]\n", "found 65 clients"),
        ("  clients: 1\n", "clients that never ask"),
        (
            "  clients: 1\n  ask: [{ at: nmi }, { at: nmi }]\n",
            "same `at` twice",
        ),
        (
            "  clients: 1\n  ask: [{ at: nmi, contexts: [task] }]\n",
            "found `contexts` at `nmi`",
        ),
        (
            "  clients: 1\n  ask: [{ at: sys-exit, contexts: [] }]\n",
            "found no context",
        ),
        (
            "  clients: 2\n  ask: [{ at: nmi, clients: [2] }]\n",
            "found client 2",
        ),
        (
            "  clients: 1\n  places: [{ kernel: f, clients: [1] }]\n",
            "found client 1",
        ),
        (
            "  clients: 1\n  places: [{ kernel: f, count: 0 }]\n",
            "found count 0",
        ),
        (
            "  clients: 1\n  places: [{ kernel: a }, { kernel: b }, { kernel: c }, { kernel: d }, { kernel: e }]\n",
            "more than 4 places",
        ),
        (
            "  clients: 1\n  ask: [{ at: nmi, count: 0 }]\n",
            "found count 0",
        ),
        ("  clients: 1\n  ask: [{ at: poke }]\n", "poke"),
        (
            "  clients: 1\n  poke: [{ from: 2, to: 0, context: nmi, every: 1 ms }]\n",
            "found CPU 2",
        ),
        (
            "  clients: 1\n  poke: [{ from: 1, to: 0, context: task, every: 1 ms }]\n",
            "found context `task`",
        ),
        (
            "  clients: 1\n  poke: [{ from: 1, to: 0, context: nmi, every: 1 us }]\n",
            "found 1 us",
        ),
        (
            "  clients: 2\n  ask: [{ at: nmi }]\n  cancelled: [1]\n  churn: { cpu: 0, every: 1 ms }\n",
            "found `churn` beside `cancelled`",
        ),
        (
            "  clients: 2\n  ask: [{ at: nmi }]\n  churn: { cpu: 0, also-on: [2], every: 1 ms }\n",
            "found CPU 2",
        ),
        (
            "  clients: 2\n  ask: [{ at: nmi }]\n  churn: { cpu: 0, also-on: [1], clients: [1], every: 1 ms }\n",
            "found 2 threads",
        ),
        (
            "  clients: 33\n  ask: [{ at: nmi }]\n  churn: { cpu: 0, also-on: [1], every: 1 ms }\n",
            "found 33 clients",
        ),
        (
            "  clients: 1\n  ask: [{ at: nmi }]\n  callback-delay: 21 ms\n",
            "found 21 ms",
        ),
        (
            "  clients: 1\n  ask: [{ at: nmi }]\n  log-pages: 0\n",
            "found 0 pages",
        ),
    ] {
        let found = complaints(&with(lab));
        assert!(
            found.iter().any(|line| line.contains(wanted)),
            "{wanted}: {found:?}"
        );
    }
}
