//! One line each, with the place.

use super::{MINIMAL, complaints, load};
use unwindlab_scenario::parse::parse;

/// What is said of a scenario.
#[track_caller]
fn says<const N: usize>(text: &str, expected: [&str; N]) {
    assert_eq!(complaints(text), expected);
}

/// What is said of [`MINIMAL`] with lines after it (its own are five).
#[track_caller]
fn of_more<const N: usize>(lines: &str, expected: [&str; N]) {
    says(&format!("{MINIMAL}{lines}"), expected);
}

/// What is said of [`MINIMAL`] with something else in it.
#[track_caller]
fn of_other<const N: usize>(from: &str, to: &str, expected: [&str; N]) {
    says(&MINIMAL.replace(from, to), expected);
}

#[test]
fn minimal_is_right() {
    load(MINIMAL).unwrap();
}

#[test]
fn counts_of_what_is_not_there() {
    of_more(
        "expect: { nonces: 0, wrong-results: 0, samples: 1 or more }\n",
        [
            "6:19: found `nonces` without `user-mode` or `bpf`, which it counts",
            "6:37: found `wrong-results` without `user-mode` or `bpf`, which it counts",
        ],
    );
}

#[test]
fn not_yaml() {
    says("", ["1:1: unexpected end of input"]);
    says("name: [x\n", ["1:7: found `[x`, expected a single value"]);
    says(
        "name: x\n\tdescription: y\n",
        ["1:7: while scanning a plain scalar, found a tab"],
    );
    says(
        "{ name: \"\x1b[31m\u{0}",
        ["1:10: unexpected character: `\\u{1b}'"],
    );
    says(
        "- a\n- b\n",
        ["1:1: found `- a`, expected keys with values (`key: value`)"],
    );
    says(
        "name: &a [*a]\n",
        ["1:10: found `[*a]`, expected a single value"],
    );
    of_more(
        "---\nname: y\n",
        ["7:1: found a second document, expected one scenario in a file"],
    );
}

#[test]
fn keys() {
    of_more(
        "setle: 3 s\n",
        [
            "6:1: found key `setle`, expected one of `name`, `description`, `machine`, \
          `workload`, `perf`, `lab`, `user-mode`, `bpf`, `tracefs`, `perf-tool`, `inject`, `schedule`, `witness`, `explore`, `settle`, `timeout`, `expect`, `invariants`, `require`, \
          `snapshot`",
        ],
    );
    of_more("name: x\n", ["6:1: found key `name` twice"]);
    says("name: x\n", ["1:1: key `description` is missing"]);
    of_other(
        "kind: spin",
        "kind: spinn",
        [
            "4:9: found `spinn`, expected one of `spin`, `syscalls`, `deep`, `sleep-migrate`, \
             `exit`, `missing-pages`, `unreadable-ends`, `traced`, `io-uring`, `io-uring-worker`, `io-uring-timer`, `io-uring-cooperative`, `exec`, `exec-by-thread`, \
         `compat`, `process`, `fork`, `vfork`, `clone3`, `paged-out`, `perf-calls`, `int80`, `compat-int80`, \
         `compat-syscall`, `compat-sysenter`, \
         `page-fault`, `major-fault`, `protection-fault`, `int3`, `int1`, `gp-fault`, `single-step`, `signals`, `seccomp`, \
         `exit-group`, `killed`, `shapes`, `frameless`, \
         `sframe-hostile`, `sframe-fields`, `sframe-reads`, `sframe-lives`, `compat-sframe`, `frameless-shapes`, `interpreter`, `user-unwind`, `user-unwind-frameless`, `c-program`, `program`, `own-stack`, `own-stack-frameless`, `waits`, `raises`, `stuck`",
        ],
    );
    of_more(
        "inject:\n  - nmi:\n      at: { kernl: x }\n",
        ["8:13: found `kernl`, expected one of `kernel`, `user`, `watch`"],
    );
    of_more(
        "inject:\n  - smi: {}\n",
        [
            "7:5: found `smi`, expected one of `nmi`, `pmu-overflow`, `fail`, `irq`, `freeze`, `thaw`, `poke`, \
           `corrupt`, `migrate`, `signal`, `block-fault`, `release-fault`, `unmap`, `page-out`, `truncate`, `kill`, `exec`",
        ],
    );
    of_more(
        "inject:\n  - pmu-overflow: { every: 1 ms, count: 1 }\n",
        ["7:19: `pmu-overflow` needs `machine: { pmu: synthetic }`"],
    );
}

#[test]
fn what_one_workload_does_is_asked_of_no_other() {
    let inject = |action: &str| {
        format!("machine: {{ vcpus: 2 }}\ninject:\n  - {action}: {{ delay: 1 ms, of: 0 }}\n")
    };
    of_more(
        &inject("kill"),
        ["8:11: `kill` needs workload `process`, which has a process for each iteration"],
    );
    of_more(
        &inject("exec"),
        ["8:11: `exec` needs workload `process`, which has a process for each iteration"],
    );
    let frame = "machine: { vcpus: 2 }\ninject:\n  - page-out: { delay: 1 ms, of: 0, frame: 3 }\n";
    of_more(
        frame,
        [
            "8:15: `page-out` needs workload `paged-out`, which can take pages of its stack out of memory",
            "8:44: found frame 3, expected 1 to 2",
        ],
    );
    of_more(
        "inject:\n  - corrupt: { at: { user: spin_loop }, frame: 0, with: loop }\n",
        ["7:57: found `loop` for frame 0, whose frame pointer is a register and in no frame"],
    );
}

#[test]
fn perf_tool_needs_what_it_is_judged_by() {
    let text = format!("{MINIMAL}perf-tool: {{ event: cycles }}\nperf: {{ markers: true }}\n");
    let said = complaints(&text);
    for part in ["pmu: synthetic", "beside other tracers", "`pmu-overflow`"] {
        assert!(said.iter().any(|line| line.contains(part)), "{said:?}");
    }
    let good = format!(
        "{MINIMAL}machine: {{ pmu: synthetic }}\nperf-tool: {{ event: cycles }}\ninject:\n  - \
         pmu-overflow: {{ every: 1 ms, count: 1 }}\n"
    );
    load(&good).unwrap();
    let exits = good.replace("kind: spin", "kind: exit");
    assert!(complaints(&exits)[0].contains("found workload `exit`"));
}

#[test]
fn a_program_is_named_and_alone() {
    let program = MINIMAL.replace("kind: spin", "kind: program");
    assert!(complaints(&program)[0].contains("needs `program: NAME`"));
    let named = program.replace("kind: program\n", "kind: program\n  program: f004\n");
    load(&named).unwrap();
    for (more, part) in [
        ("perf: { markers: true }\n", "expected it alone"),
        (
            "lab: { clients: 1, ask: [{ at: sys-enter }] }\n",
            "expected it alone",
        ),
    ] {
        let said = complaints(&format!("{named}{more}"));
        assert!(said.iter().any(|line| line.contains(part)), "{said:?}");
    }
    let unknown = named.replace("f004", "f999");
    assert!(complaints(&unknown)[0].contains("found program `f999`, expected one of f001, f002"));
    let other = named.replace("kind: program", "kind: deep");
    assert!(complaints(&other)[0].contains("found `program` with workload `deep`"));
    let two = named.replace("program: f004", "program: f004\n  threads: 2");
    assert!(complaints(&two)[0].contains("found 2 threads"));
}

#[test]
fn values_of_another_kind() {
    of_other(
        "frames: 3",
        "frames: three # or so",
        ["5:11: found `three`, expected a whole number up to 4294967295"],
    );
    of_other(
        "frames: 3",
        "frames: -3",
        ["5:11: found `-3`, expected a whole number up to 4294967295"],
    );
    of_more(
        "machine: { vcpus: 256 }\n",
        ["6:19: found `256`, expected a whole number up to 255"],
    );
    of_more(
        "machine: 2\n",
        ["6:10: found `2`, expected keys with values (`key: value`)"],
    );
    of_more(
        "settle: [1]\n",
        ["6:9: found `[1]`, expected a single value"],
    );
    of_more(
        "perf: { markers: yes }\n",
        ["6:18: found `yes`, expected `true` or `false`"],
    );
}

#[test]
fn notations() {
    of_more(
        "settle: 5 years\n",
        ["6:9: found string \"5 years\", expected a time such as `500 us`, `20 ms` or `3 s`"],
    );
    of_more(
        "machine:\n  # the memory\n  memory:\n    5\n",
        [
            "9:5: found string \"5\", expected an amount of memory such as `256 MiB` or \
          `1 GiB`",
        ],
    );
    of_more(
        "expect: { samples: many }\n",
        [
            "6:20: found string \"many\", expected a number such as `20`, `20 or more` or \
          `20 or less`",
        ],
    );
    of_more(
        "inject:\n  - nmi: { at: { kernel: a+-1 } }\n",
        [
            "7:26: found string \"a+-1\", expected a symbol and an offset such as \
          `__x64_sys_getppid` or `__x64_sys_getppid+0x10`, or a line of the source such as \
          `kernel/unwind/deferred.c:123`",
        ],
    );
}

#[test]
fn names() {
    of_other(
        "name: x",
        "name: y",
        ["1:7: found name `y`, expected `x` as in the file's name"],
    );
    of_other(
        "name: x",
        "name: X y",
        ["1:7: found name `X y`, expected lower-case words joined by `-`"],
    );
    of_other(
        "The shortest scenario there is.",
        "\"\"",
        ["2:14: expected a description of one line"],
    );
}

/// A name of 500 KB that is listed in each of 200,000 errors would fill the memory.
#[test]
fn errors_have_an_end() {
    let name = "x".repeat(65);
    let after = vec!["y"; 103].join(", ");
    let names = (0..14).map(|n| format!("  - nmi: {{ name: n{n}, delay: 1 ms }}\n"));
    let lines = format!(
        "inject:\n  - nmi: {{ name: {name}, delay: 1 ms }}\n{}  - nmi: {{ after: [{name}1, {after}] }}\n",
        names.collect::<String>()
    );
    let errors = load(&format!("{MINIMAL}{lines}")).unwrap_err().0;
    let messages: Vec<&str> = errors.iter().map(|it| it.message.as_str()).collect();
    let known = (0..12)
        .map(|n| format!("n{n}"))
        .collect::<Vec<_>>()
        .join(", ");
    let unknown = |name: &str| {
        format!("found `{name}`, expected the name of an earlier injection ({known} and 3 more)")
    };
    assert_eq!(
        messages[0],
        "found a name of 65 characters, expected 64 at most"
    );
    assert_eq!(messages[1], unknown(&format!("{}...", &name[..64])));
    assert!(messages[2..100].iter().all(|it| *it == unknown("y")));
    assert_eq!(messages[100..], ["5 more errors are not shown"]);
}

#[test]
fn everything_is_said_at_once() {
    let text = "\
name: x
description: Wrong all over.
machine: { vcpus: 9, memory: 16 GiB, cmdline: \"a\\nb\" }
workload: { kind: deep, frames: 2, threads: 256 }
perf: { ring-pages: 3 }
inject:
  - nmi: { at: { user: root }, every: 1 ms }
  - nmi: { at: { user: rot }, count: 3, hit: 0, backs-off: false }
  - nmi: { every: 1 us, vcpus: [0, 0, 9], first: 1 }
  - nmi: {}
settle: 2 s
timeout: 1 s
invariants: [C1]
require: [M1, Z9]
";
    says(
        text,
        [
            "3:19: found 9 vCPUs, expected 1 to 8",
            "3:30: found 16384 MiB, expected 64 MiB to 8 GiB",
            "3:47: expected at most 1024 printable ASCII characters",
            "4:33: found 2 frames, expected 3 to 131072",
            "4:45: found 256 threads, expected 1 to 255",
            "5:21: found 3 pages, expected a power of two up to 4096",
            "7:10: expected exactly one of `at` (an instruction or an access), `every` (a time), `on` (an event) and \
             `delay` (a time), or `after` alone",
            "8:16: the workloads have no symbol `rot`, expected one of root, exit_root, descend, \
             spin_leaf, spin_loop, syscalls_leaf, syscalls_call, syscalls_return, deep_stub, deep_leaf, \
             deep_call, deep_return, sleep_leaf, sleep_call, sleep_return, exit_leaf, exit_call, \
             exit_return, missing_leaf, missing_call, missing_return, paged_leaf, paged_call, paged_return, calls_leaf, calls_call, calls_return, uring_leaf, uring_call, uring_return, exec_leaf, exec_call, \
             exec_return, entry_leaf, compat_descend, compat_leaf, compat_nop, \
             process_leaf, process_call, process_return, fork_leaf, fork_call, fork_return, \
             shapes_leaf, shapes_begin, shapes_call, shapes_return, shapes_handler, \
             bare_begin, bare_descend, bare_leaf, bare_body, bare_call, bare_return, c_begin, odd_begin, odd_late, odd_gone, odd_handler, interpret, native_leaf, native_call, native_return",
            "8:38: found key `count`, expected none: `at` takes `first`, `hit`, `repeat`, `vcpu`, \
             `thread`, `task` and `in-nmi`, and for `nmi` and `pmu-overflow` also `times` and `sweep`",
            "8:46: found `hit` 0, expected 1 to 10000000",
            "8:60: found key `backs-off`, expected none: `at` takes `first`, `hit`, `repeat`, `vcpu`, \
             `thread`, `task` and `in-nmi`, and for `nmi` and `pmu-overflow` also `times` and `sweep`",
            "9:19: key `count` is missing beside `every`",
            "9:19: found 1 us, expected 10 us or more",
            "9:36: found vCPU 0 twice",
            "9:39: found vCPU 9, expected one of the machine's 9, from 0",
            "9:50: found key `first`, expected none: `every` takes `count` and `vcpus`, \
             and for `nmi` and `pmu-overflow` also `backs-off`",
            "10:10: expected exactly one of `at` (an instruction or an access), `every` (a time), `on` (an event) and \
             `delay` (a time), or `after` alone",
            "12:10: found timeout 1 s, expected more than the settle time, 2 s",
            "14:11: `M1` is required but not among `invariants`",
            "14:15: found invariant `Z9`, expected one of C1, M1, S1",
        ],
    );
}

#[test]
fn frames_of_the_last_thread() {
    of_other(
        "frames: 3",
        "frames: 3\n  frames-step: 1000\n  threads: 255",
        ["6:16: the last thread would have 254003 frames, expected 3 to 131072"],
    );
}

#[test]
fn events() {
    of_more(
        "\
perf:
  max-stack: 3
  events:
    - { name: a, event: dummy, defer-output: true, output-to: b }
    - { name: b, event: \"nmi:\" }
    - { name: b, event: cpu-clock, output-to: a }
",
        [
            "7:14: found `max-stack` beside `events`, expected it in one of the events",
            "9:63: found `b`, expected the name of an earlier event with a ring of its own",
            "10:25: found event `nmi:`, expected a tracepoint such as `nmi:nmi_handler`, a probe \
             (`kprobe:FUNCTION+OFFSET`, `optprobe:FUNCTION+OFFSET`, `kretprobe:FUNCTION`, \
             `fprobe:FUNCTION`, `fprobe:FUNCTION%return`, `uprobe:SYMBOL+OFFSET`, \
             `uretprobe:SYMBOL`), a breakpoint (`breakpoint:SYMBOL+OFFSET`, \
             `mem:SYMBOL+OFFSET/BYTES:rw`, `mem:task.FIELD/BYTES:w`), or one of `dummy`, \
             `cpu-clock`, `task-clock`, `page-faults`, `minor-faults`, `major-faults`, \
             `alignment-faults`, `context-switches`, `cpu-migrations`, `cycles`, `instructions`",
            "11:15: found event `b` twice, expected unique names",
        ],
    );
    of_more(
        "\
perf:
  events:
    - { name: a, event: dummy, defer-output: true, stack-bytes: 8 }
    - { name: b, event: cpu-clock, sample: [stack-user], stack-bytes: 12 }
",
        [
            "8:65: found 8 bytes, expected a multiple of 8, and `stack-user` in `sample`",
            "9:71: found 12 bytes, expected a multiple of 8, and `stack-user` in `sample`",
        ],
    );
    of_more(
        "\
perf:
  events:
    - { name: a, event: dummy, filter: id == 1 }
    - { name: b, event: \"mem:task.unwind_info.id/8:w\", inherit: true }
    - { name: c, event: \"optprobe:a\" }
    - { name: d, event: \"kprobe:a\" }
",
        [
            "8:40: found `filter`, which takes a tracepoint or a probe: only they have fields",
            "9:25: an event on a field of the task needs `output-to`: each thread has its own, and \
             all write to one ring",
            "9:25: an event on a field of the task takes no `inherit`: it is the field of one task",
            "10:25: found `optprobe` beside `kprobe` or `kretprobe`: the kernel optimises all \
             kprobes or none",
        ],
    );
    of_more(
        "perf: { events: [] }\n",
        ["6:17: found no events, expected at least one (or no key `events`)"],
    );
}

#[test]
fn injections() {
    of_more(
        "\
inject:
  - nmi: { after: b }
  - freeze: { name: a, every: 1 ms, count: 1 }
  - nmi: { name: a, on: { mark: arm }, thread: 0, target: 1 }
  - nmi: { at: { user: root }, task: any, thread: 0, first: 2 }
  - nmi: { delay: 1 ms, repeat: 2 }
  - irq: { vector: 0x100, after: a }
  - poke: { variable: x, value: 1, bytes: 3, after: a, cpu: 1 }
  - thaw: { at: { user: root }, thread: 1, vcpu: 1, hit: 0 }
  - freeze: { delay: 1 ms, limit: 1 min }
",
        ["15:35: found string \"1 min\", expected a time such as `500 us`, `20 ms` or `3 s`"],
    );
    of_more(
        "\
inject:
  - nmi: { after: b }
  - freeze: { name: a, every: 1 ms, count: 1 }
  - nmi: { name: a, on: { mark: arm }, thread: 0, target: 1 }
  - nmi: { at: { user: root }, task: any, thread: 0, first: 2 }
  - nmi: { delay: 1 ms, repeat: 2 }
  - irq: { vector: 0x100, after: a }
  - poke: { variable: x, value: 1, bytes: 3, after: a, cpu: 1 }
  - thaw: { at: { user: root }, thread: 1, vcpu: 1, hit: 0 }
  - freeze: { delay: 1 ms, limit: 1 us }
",
        [
            "7:19: found `b`, expected the name of an earlier injection (none has one)",
            "8:31: found `every`, which `freeze` does not take",
            "9:18: found the name `a` twice",
            "9:48: found key `thread`, expected none: `on` takes `hit` and `repeat`",
            "9:59: found vCPU 1, expected one of the machine's 1, from 0",
            "10:51: found key `thread`, expected none: with `task: any` there are no iterations of a \
             thread",
            "10:61: found key `first`, expected none: with `task: any` there are no iterations of a \
             thread",
            "11:33: found key `repeat`, expected none: a `delay` without `after` happens once",
            "12:20: found vector 256, expected 16 to 255",
            "13:43: found 3 bytes, expected 1, 2, 4 or 8",
            "13:61: found vCPU 1, expected one of the machine's 1, from 0",
            "14:41: found thread 1, expected one of the workload's 1, from 0",
            "14:50: found vCPU 1, expected one of the machine's 1, from 0",
            "14:58: found `hit` 0, expected 1 to 10000000",
            "15:35: found 1 us, expected 1 ms to 10 s",
        ],
    );
    of_more(
        "schedule: { points: [{ vcpu: 1, at: { user: rot } }], repeat: 18446744073709551615 }\n",
        [
            "6:21: found 1 points, expected two or more",
            "6:30: found vCPU 1, expected one of the machine's 1, from 0",
            "6:37: the workloads have no symbol `rot`, expected one of root, exit_root, descend, \
             spin_leaf, spin_loop, syscalls_leaf, syscalls_call, syscalls_return, deep_stub, deep_leaf, \
             deep_call, deep_return, sleep_leaf, sleep_call, sleep_return, exit_leaf, exit_call, \
             exit_return, missing_leaf, missing_call, missing_return, paged_leaf, paged_call, paged_return, calls_leaf, calls_call, calls_return, uring_leaf, uring_call, uring_return, exec_leaf, exec_call, \
             exec_return, entry_leaf, compat_descend, compat_leaf, compat_nop, \
             process_leaf, process_call, process_return, fork_leaf, fork_call, fork_return, \
             shapes_leaf, shapes_begin, shapes_call, shapes_return, shapes_handler, \
             bare_begin, bare_descend, bare_leaf, bare_body, bare_call, bare_return, c_begin, odd_begin, odd_late, odd_gone, odd_handler, interpret, native_leaf, native_call, native_return",
            "6:63: found `repeat` 18446744073709551615, expected 1 to 10000000",
        ],
    );
}

#[test]
fn migration_takes_two_vcpus() {
    of_other(
        "spin",
        "sleep-migrate",
        ["4:9: workload `sleep-migrate` needs 2 vCPUs or more to migrate between"],
    );
}

#[test]
fn too_long() {
    let text = format!("{MINIMAL}# {}\n", "x".repeat(1 << 20));
    let error = parse("x.yaml", &text).unwrap_err().to_string();
    let found = text.len();
    assert_eq!(
        error,
        format!("x.yaml:1:1: found {found} bytes, expected at most 1048576")
    );
}

mod any_text {
    use proptest::prelude::*;

    use unwindlab_scenario::parse::parse;

    proptest! {
        /// Never a panic, and always a place.
        #[test]
        fn is_refused_with_a_place(text in "[a-z:{}\\[\\]&*!|>'\"%@` \n\t0-9-]{0,200}") {
            if let Err(errors) = parse("f", &text) {
                prop_assert!(!errors.0.is_empty());
                for error in errors.0 {
                    prop_assert!(error.location.line >= 1 && error.location.column >= 1);
                    prop_assert!(!error.message.contains('\n'));
                }
            }
        }
    }
}

#[test]
fn explorations() {
    let smp = "machine: { vcpus: 2 }\n";
    of_more(
        "explore: { trials: 5 }\n",
        ["6:10: `explore` needs 2 vCPUs or more: it explores the order in which they act"],
    );
    of_more(
        &format!("{smp}explore: {{ trials: 0, preemptions: 4 }}\nsnapshot: shapes\n"),
        [
            "7:20: found 0 trials, expected 1 to 100000",
            "7:36: found 4 preemptions, expected 1 to 3",
            "8:11: found `snapshot` beside `explore`, whose trials differ",
        ],
    );
}

#[test]
fn unwinding_in_user_mode() {
    of_other(
        "kind: spin",
        "kind: waits",
        ["4:9: found `waits` without user-mode, which it needs"],
    );
    says(
        &format!(
            "{}user-mode: {{}}\n",
            MINIMAL.replace("kind: spin", "kind: exit")
        ),
        [
            "4:9: found `exit` with user-mode, expected `spin`, `syscalls`, `deep`, `frameless`, `interpreter`, `fork`, \
             `vfork`, `clone3`, `exec`, `exit-group`, `waits` or `raises`",
        ],
    );
    of_more(
        "user-mode: { twins: true, signal: 65, blocked: true }\n",
        [
            "6:21: found 1 threads, expected an even number with twins",
            "6:35: found signal 65, expected 1 to 64",
            "6:48: found `blocked` with `spin`, expected `deep`",
        ],
    );
}

#[test]
fn of_what_asks() {
    of_more(
        "user-mode: { ask: itimer }\n",
        ["6:19: found signal 40, expected `signal: 27`: the kernel sends no other one"],
    );
    of_more(
        "user-mode: { ask: sigtrap, signal: 10 }\n",
        ["6:19: found signal 10, expected `signal: 5`: the kernel sends no other one"],
    );
    load(&format!(
        "{MINIMAL}user-mode: {{ ask: sigtrap, signal: 5 }}\n"
    ))
    .unwrap();
}

#[test]
fn the_32_bit_vdso_needs_a_process_without_one() {
    for kind in ["compat-syscall", "compat-sysenter"] {
        let text = MINIMAL.replace("kind: spin", &format!("kind: {kind}"));
        let expected =
            format!("4:9: found `{kind}`, expected `cmdline: vdso=0` of the machine with it");
        says(&text, [expected.as_str()]);
        let with = |cmdline: &str| format!("{text}machine: {{ cmdline: {cmdline} }}\n");
        load(&with("quiet vdso=0")).unwrap();
        says(&with("vdso=0 vdso=1"), [expected.as_str()]);
    }
}
