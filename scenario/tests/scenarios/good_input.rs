//! What scenarios become.

use unwindlab_abi::lab;
use unwindlab_abi::plan::{EventSource, WorkloadKind};

use super::{INVARIANTS, Kernel, MINIMAL, load};
use unwindlab_engine::plan::TrialPlan;
use unwindlab_engine::plan::{
    ActionPlan, ArrivalPlan, CodePlace, EventPlan, PmuPlan, PokePlan, Settle, TaskFilter,
    TriggerPlan,
};
use unwindlab_scenario::library::Library;
use unwindlab_scenario::{ResolveError, UnsupportedKernel, resolve};

fn plan(text: &str) -> Result<TrialPlan, ResolveError> {
    resolve("x.yaml", &load(text).unwrap(), &Kernel::new(), "hash")
}

#[test]
fn a_workload_runs_on_as_long_as_it_needs_to() {
    let kind = "kind: spin\n  frames: 3";
    let injects = "inject: [{ nmi: { every: 1 ms, count: 1 } }]\n";
    for (workload, more, settles) in [
        ("", "", Settle::Ms(50)),
        ("iterations: 0", "", Settle::Ms(50)),
        ("iterations: 1", "", Settle::ItEnds),
        ("iterations: 1", "settle: 60 ms\n", Settle::Ms(60)),
        ("iterations: 1", injects, Settle::ItEnds),
        ("", injects, Settle::Iterations { most_ms: 50 }),
    ] {
        let text = MINIMAL.replace(kind, &format!("{kind}\n  {workload}")) + more;
        assert_eq!(plan(&text).unwrap().settle, settles, "{text}");
    }
    let mut kernel = Kernel::new();
    kernel
        .0
        .insert(lab::SYMBOL, vec![(0xffff_ffff_8500_0000, 8)]);
    let others = format!("{MINIMAL}{injects}lab: {{ clients: 1, ask: [{{ at: sys-enter }}] }}\n");
    let others = resolve("x.yaml", &load(&others).unwrap(), &kernel, "hash");
    assert_eq!(others.unwrap().settle, Settle::Ms(50));
    let program = MINIMAL.replace(kind, "kind: program\n  frames: 3\n  program: f001");
    assert_eq!(plan(&program).unwrap().settle, Settle::ItEnds);
}

#[test]
fn defaults() {
    let plan = plan(MINIMAL).unwrap();
    assert_eq!((plan.vcpus, plan.memory_mib), (1, 256));
    assert_eq!((plan.settle, plan.limits.run_ms), (Settle::Ms(50), 20_000));
    assert_eq!(plan.symbols.current_task, 0x1000);
    assert_eq!(plan.guest.workload.kind, WorkloadKind::Spin);
    assert_eq!(plan.guest.workload.threads, 1);
    let [tracking, nmi] = plan.guest.tracing.events.as_slice() else {
        panic!("two events");
    };
    assert_eq!(tracking.source, EventSource::Dummy);
    assert!(tracking.defer_output && tracking.task && !tracking.defer_callchain);
    assert!(nmi.defer_callchain && !nmi.defer_output);
    // IDENTIFIER, CPU, CALLCHAIN, TIME, TID, IP.
    assert_eq!(nmi.sample_type, 0x1_00a7);
    assert_eq!((nmi.sample_period, nmi.output_to), (1, Some(0)));
}

#[test]
fn overflows_of_synthetic_counters() {
    let text = format!(
        "{MINIMAL}machine: {{ pmu: synthetic }}
inject:
  - pmu-overflow: {{ at: {{ kernel: __x64_sys_getppid }}, repeat: 5 }}
"
    );
    let resolved = plan(&text).unwrap();
    let rdpmc = vec![0xffff_ffff_8200_0010];
    assert_eq!(resolved.pmu, PmuPlan::Synthetic { rdpmc });
    assert_eq!(resolved.injections[0].action, ActionPlan::PmuOverflow);
    assert_eq!(resolved.injections[0].trigger.injections(), 5);
    let sampler = &resolved.guest.tracing.events[1];
    assert_eq!(sampler.source, EventSource::Hardware(0));
    assert!(sampler.defer_callchain && sampler.sample_period == 1 << 46);

    let host = plan(&format!("{MINIMAL}machine: {{ pmu: host }}\n")).unwrap();
    assert_eq!(host.pmu, PmuPlan::Host);
    let sampler = &host.guest.tracing.events[1];
    assert_eq!(sampler.source, EventSource::Hardware(0));
}

#[test]
fn a_kernel_without_rdpmc_has_no_driver_for_synthetic_counters() {
    let mut kernel = Kernel::new();
    kernel.0.remove("__x64_sys_getppid");
    let scenario = load(&format!("{MINIMAL}machine: {{ pmu: synthetic }}\n")).unwrap();
    let refused = resolve("x.yaml", &scenario, &kernel, "hash").unwrap_err();
    assert!(
        matches!(refused, ResolveError::Unsupported(UnsupportedKernel::Rdpmc)),
        "{refused}"
    );
}

#[test]
fn triggers() {
    let text = format!(
        "{MINIMAL}machine: {{ vcpus: 2 }}
inject:
  - nmi: {{ at: {{ kernel: __x64_sys_getppid+0x4 }}, first: 2, hit: 3, times: 4, repeat: 5 }}
  - nmi: {{ at: {{ user: spin_loop }} }}
  - nmi: {{ every: 500 us, count: 2000 }}
  - nmi: {{ every: 1 ms, count: 1, vcpus: [1], backs-off: true }}
"
    );
    let plan = plan(&text).unwrap();
    let triggers: Vec<_> = plan.injections.iter().map(|it| &it.trigger).collect();
    assert_eq!(
        triggers,
        [
            &TriggerPlan::Arrival(ArrivalPlan {
                place: CodePlace::Kernel {
                    address: 0xffff_ffff_8200_0004
                },
                first: 2,
                hit: 3,
                repeat: 5,
                times: 4,
                sweep: false,
                by: TaskFilter::Workload,
                vcpu: None,
                in_nmi: false,
                optional: false,
            }),
            &TriggerPlan::Arrival(ArrivalPlan {
                place: CodePlace::User {
                    symbol: "spin_loop".to_owned(),
                    offset: 0
                },
                first: 1,
                hit: 1,
                repeat: 1,
                times: 1,
                sweep: false,
                by: TaskFilter::Workload,
                vcpu: None,
                in_nmi: false,
                optional: false,
            }),
            &TriggerPlan::Rate {
                period_us: 500,
                count: 2000,
                vcpus: vec![0, 1],
                backs_off: false,
            },
            &TriggerPlan::Rate {
                period_us: 1000,
                count: 1,
                vcpus: vec![1],
                backs_off: true,
            },
        ]
    );
    let planned: Vec<u64> = triggers.iter().map(|it| it.injections()).collect();
    assert_eq!(planned, [20, 1, 4000, 1]);
}

#[test]
fn sequences_and_actions() {
    let text = format!(
        "{MINIMAL}machine: {{ vcpus: 2 }}
inject:
  - freeze: {{ name: stop, at: {{ kernel: __x64_sys_getppid }}, vcpu: 1, task: any }}
  - nmi: {{ target: 1, after: stop }}
  - poke: {{ variable: counter, cpu: 1, value: 0xfffffffd, delay: 2 ms }}
  - irq: {{ vector: 0xfd, on: {{ lab: callback-begin }}, hit: 3, after: stop }}
  - thaw: {{ target: 1, after: stop, delay: 1 ms, repeat: 4 }}
"
    );
    let plan = plan(&text).unwrap();
    let after: Vec<_> = plan
        .injections
        .iter()
        .map(|it| it.after.as_slice())
        .collect();
    assert_eq!(after, [&[][..], &[0], &[], &[0], &[0]]);
    let targets: Vec<_> = plan.injections.iter().map(|it| it.target).collect();
    assert_eq!(targets, [None, Some(1), None, None, Some(1)]);
    let [stop, nmi, poke, irq, thaw] = plan.injections.as_slice() else {
        panic!("five injections");
    };
    assert_eq!(stop.name, "injection 1 (freeze, `stop`)");
    assert!(matches!(
        &stop.trigger,
        TriggerPlan::Arrival(ArrivalPlan {
            by: TaskFilter::Any,
            vcpu: Some(1),
            ..
        })
    ));
    let at_once = |micros, repeat| TriggerPlan::Delay { micros, repeat };
    assert_eq!(nmi.trigger, at_once(0, 1));
    assert_eq!(thaw.trigger, at_once(1000, 4));
    assert_eq!(
        poke.action,
        ActionPlan::Poke(PokePlan {
            address: 0x2000,
            cpu: Some(1),
            bytes: 4,
            value: 0xffff_fffd,
        })
    );
    assert_eq!(irq.action, ActionPlan::Irq { vector: 0xfd });
    let third = TriggerPlan::Event {
        event: EventPlan::Lab(3),
        hit: 3,
        repeat: 1,
    };
    assert_eq!(irq.trigger, third);
}

#[test]
fn a_schedule_is_a_sequence_for_each_vcpu() {
    let text = format!(
        "{MINIMAL}machine: {{ vcpus: 2 }}
inject:
  - nmi: {{ at: {{ user: spin_loop }} }}
schedule:
  repeat: 3
  points:
    - {{ vcpu: 0, at: {{ kernel: __x64_sys_getppid }} }}
    - {{ vcpu: 1, at: {{ kernel: __x64_sys_getppid+0x4 }}, task: any }}
    - {{ vcpu: 0, at: {{ kernel: __x64_sys_getppid+0x4 }}, name: last }}
"
    );
    let plan = plan(&text).unwrap();
    let after: Vec<_> = plan
        .injections
        .iter()
        .map(|it| it.after.as_slice())
        .collect();
    assert_eq!(after, [&[][..], &[], &[], &[1]]);
    let turns = plan.injections.iter().skip(1).map(|it| it.action);
    let pass = |turn| ActionPlan::Pass {
        turn,
        of: 3,
        limit_ms: 10_000,
    };
    assert_eq!(turns.collect::<Vec<_>>(), [pass(0), pass(1), pass(2)]);
    let planned = plan.injections.iter().map(|it| it.trigger.injections());
    assert_eq!(planned.collect::<Vec<_>>(), [1, 3, 3, 3]);
}

#[test]
fn symbols_that_are_not_there() {
    let text = format!(
        "{MINIMAL}inject:
  - nmi: {{ at: {{ kernel: sys_getppid }} }}
  - nmi: {{ at: {{ kernel: nowhere }} }}
  - nmi: {{ at: {{ kernel: twice }} }}
  - nmi: {{ at: {{ kernel: __x64_sys_getppid+0x20 }} }}
  - nmi: {{ at: {{ kernel: __x64_sys_getppid+0x6 }} }}
  - poke: {{ variable: cuonter, value: 0, delay: 1 ms }}
  - poke: {{ variable: __x64_sys_getppid, cpu: 0, value: 0, delay: 1 ms }}
"
    );
    assert_eq!(
        plan(&text).unwrap_err().to_string(),
        "\
x.yaml:7:16: the kernel has no symbol `sys_getppid` (near it: __x64_sys_getppid)
x.yaml:8:16: the kernel has no symbol `nowhere`
x.yaml:9:16: the kernel has 2 symbols `twice`, expected a name that is unique
x.yaml:10:16: found offset 0x20, but `__x64_sys_getppid` has 0x20 bytes
x.yaml:11:16: found __x64_sys_getppid+0x6, which is inside an instruction, expected a boundary such as +0x4 or +0x7
x.yaml:12:23: the kernel has no symbol `cuonter`
x.yaml:13:23: `__x64_sys_getppid` is not a per-CPU variable"
    );
}

#[test]
fn a_kernel_without_the_feature_is_a_skip() {
    let mut kernel = Kernel::new();
    kernel.0.remove("unwind_deferred_request");
    let found = resolve("x.yaml", &load(MINIMAL).unwrap(), &kernel, "hash");
    assert!(matches!(
        found,
        Err(ResolveError::Unsupported(
            UnsupportedKernel::DeferredUnwinding
        ))
    ));
}

#[test]
fn more_events() {
    let text = format!("{MINIMAL}perf: {{ markers: true, switches: true, max-stack: 9 }}\n");
    let events = plan(&text).unwrap().guest.tracing.events;
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["tracking", "nmi", "sys_enter", "sys_exit"]);
    let switches: Vec<bool> = events.iter().map(|event| event.context_switch).collect();
    assert_eq!(switches, [true, false, false, false]);
    assert_eq!(events.get(1).unwrap().max_stack, 9);
}

#[test]
fn own_events() {
    let text = format!(
        "{MINIMAL}perf:
  events:
    - {{ name: a, event: dummy, defer-output: true, task: true }}
    - {{ name: b, event: cycles, period: 9, sample: [ip, callchain], output-to: a }}
    - {{ name: c, event: \"nmi:nmi_handler\", period: 1, max-stack: 5, defer-callchain: true }}
"
    );
    let events = plan(&text).unwrap().guest.tracing.events;
    let sources: Vec<_> = events.iter().map(|event| &event.source).collect();
    let nmi_handler = EventSource::Tracepoint {
        system: "nmi".to_owned(),
        name: "nmi_handler".to_owned(),
    };
    assert_eq!(
        sources,
        [&EventSource::Dummy, &EventSource::Hardware(0), &nmi_handler]
    );
    let outputs: Vec<_> = events.iter().map(|event| event.output_to).collect();
    assert_eq!(outputs, [None, Some(0), None]);
}

mod folders {
    use std::fs;
    use std::path::PathBuf;

    use super::{INVARIANTS, Library, MINIMAL};

    #[test]
    fn are_read_with_their_snapshots() {
        let root = tempfile::tempdir().unwrap();
        let scenarios = root.path().join("scenarios");
        fs::create_dir_all(&scenarios).unwrap();
        fs::create_dir_all(root.path().join("snapshots")).unwrap();
        fs::write(scenarios.join("x.yaml"), MINIMAL).unwrap();
        fs::write(
            scenarios.join("a.yaml"),
            MINIMAL.replace("name: x", "name: a"),
        )
        .unwrap();
        fs::write(scenarios.join("schema.json"), "{}").unwrap();
        fs::write(root.path().join("snapshots/x.snap"), "---\n---\nS c0\n").unwrap();
        let library = Library::open(std::slice::from_ref(&scenarios), &INVARIANTS).unwrap();
        let read: Vec<_> = library
            .scenarios
            .iter()
            .map(|it| (it.scenario.name.as_str(), it.snapshot.as_deref()))
            .collect();
        assert_eq!(read, [("a", None), ("x", Some("---\n---\nS c0\n"))]);
    }

    #[test]
    fn without_scenarios_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        let error = Library::open(&[root.path().to_owned()], &INVARIANTS).unwrap_err();
        assert!(error.to_string().starts_with("no *.yaml in "), "{error}");
    }

    #[test]
    fn names_are_unique() {
        let root = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = ["a", "b"]
            .iter()
            .map(|folder| {
                let folder = root.path().join(folder);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("x.yaml"), MINIMAL).unwrap();
                folder.join("x.yaml")
            })
            .collect();
        let error = Library::open(&files, &INVARIANTS).unwrap_err().to_string();
        assert!(
            error.contains("b/x.yaml:1:7: scenario `x` is also in "),
            "{error}"
        );
    }

    #[test]
    fn what_is_nowhere() {
        let error = Library::open(&["no-such-thing".into()], &INVARIANTS).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no file, folder or library scenario `no-such-thing`; `unwindlab list` shows the library"
        );
        let error = Library::open(&["nmi-in-sycsall".into()], &INVARIANTS).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("`nmi-in-sycsall` (near it: nmi-in-syscall"),
            "{error}"
        );
    }

    #[test]
    fn beside_the_library_hide_none_of_its_names() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("scenarios");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("x.yaml"), MINIMAL).unwrap();
        let ids: Vec<&str> = { unwindlab_oracle::invariant::INVARIANTS.iter() }
            .map(|it| it.id)
            .collect();
        let open = |names: &[&str]| {
            let names: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            let library = Library::open_beside(&folder, &names, &ids).unwrap();
            let names = library.scenarios.into_iter();
            names
                .map(|it| it.scenario.name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(open(&[]), ["x"]);
        let named = ["x", "nmi-in-syscall", "exits-do-not-leak"];
        assert_eq!(open(&named), named);
        assert_eq!(open(&["x", "sframe-version-[23]"]).len(), 3);
        fs::remove_file(folder.join("x.yaml")).unwrap();
        assert_eq!(open(&["nmi-in-syscall"]), ["nmi-in-syscall"]);
    }

    #[test]
    fn patterns_select_names_of_the_library() {
        let ids: Vec<&str> = { unwindlab_oracle::invariant::INVARIANTS.iter() }
            .map(|it| it.id)
            .collect();
        let select = |names: &[&str]| {
            let names: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            let library = Library::open(&names, &ids)?;
            let names = library.scenarios.iter().map(|it| it.file.clone());
            Ok::<_, unwindlab_scenario::library::LibraryError>(names.collect::<Vec<_>>())
        };
        let all = select(&["sframe-version-*"]).unwrap();
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(select(&["sframe-version-[23]"]).unwrap().len(), 2);
        let twice = select(&["sframe-version-2", "sframe-version-*", "sframe-v*"]).unwrap();
        assert_eq!(twice.len(), 3, "{twice:?}");
        let none = select(&["no-such-*"]).unwrap_err().to_string();
        assert!(none.starts_with("no library scenario is named like `no-such-*`"));
        let broken = select(&["sframe-["]).unwrap_err().to_string();
        assert!(broken.starts_with("`sframe-[` is no pattern: "), "{broken}");
    }
}

/// The library that is in the binary: all of it is right, for the invariants there are.
#[test]
fn library() {
    let ids: Vec<&str> = unwindlab_oracle::invariant::INVARIANTS
        .iter()
        .map(|it| it.id)
        .collect();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let in_tree = Library::open(&[folder], &ids).unwrap();
    let embedded = Library::embedded(&ids).unwrap();
    let names = |library: &Library| -> Vec<String> {
        let scenarios = library.scenarios.iter();
        scenarios
            .map(|it| String::clone(&it.scenario.name))
            .collect()
    };
    assert_eq!(names(&in_tree), names(&embedded));
    assert!(in_tree.scenarios.len() >= 8);
    for loaded in &in_tree.scenarios {
        let first = loaded.text.lines().next();
        let modeline = "# yaml-language-server: $schema=schema.json";
        assert_eq!(first, Some(modeline), "{}", loaded.file);
        // A program says by itself what it found.
        let scenario = &loaded.scenario;
        let has_point = !scenario.require.is_empty() || scenario.workload.program.is_some();
        assert!(has_point, "{} has no point", loaded.file);
    }
}
