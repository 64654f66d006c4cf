//! What a kernel lacks is told by its symbols, before anything boots.

use super::{Kernel, load};
use unwindlab_scenario::{ResolveError, resolve};

/// The symbols that scenarios of this workload, and lines, ask for one after the other.
fn asked_for(workload: &str, lines: &str) -> Vec<&'static str> {
    const ALL: [&str; 7] = [
        "bpf_prog_put",
        "__start_BTF",
        "bpf_task_work_schedule_resume",
        "bpf_send_signal_task",
        "unwind_sframe_next",
        "unwind_user_signal_prctl",
        "__x64_sys_unwind_self",
    ];
    let text = format!("name: x\ndescription: For tests.\nworkload: {{ {workload} }}\n{lines}");
    let loaded = load(&text).unwrap();
    let mut kernel = Kernel::new();
    let mut asked = Vec::new();
    while let Err(error) = resolve("x.yaml", &loaded, &kernel, "hash") {
        let ResolveError::Unsupported(lack) = error else {
            panic!("{error}");
        };
        let said = lack.to_string();
        let symbol = ALL.into_iter().find(|it| said.contains(&format!("`{it}`")));
        let symbol = symbol.unwrap_or_else(|| panic!("{said}"));
        kernel.0.insert(symbol, vec![(0xffff_ffff_8500_0000, 8)]);
        asked.push(symbol);
    }
    asked
}

#[test]
fn workloads_need_what_the_proposals_add() {
    let none: [&str; 0] = [];
    assert_eq!(asked_for("kind: deep, frames: 13", ""), none);
    assert_eq!(
        asked_for("kind: frameless, frames: 13, sframe: none", ""),
        none
    );
    let section = asked_for("kind: frameless, frames: 13, sframe: v3", "");
    assert_eq!(section, ["unwind_sframe_next"]);
    let own = asked_for("kind: own-stack-frameless, frames: 13, sframe: v3", "");
    assert_eq!(own, ["unwind_sframe_next", "__x64_sys_unwind_self"]);
    let itself = asked_for("kind: user-unwind, frames: 13", "");
    assert_eq!(itself, ["unwind_user_signal_prctl"]);
}

#[test]
fn bpf_programs_need_the_functions_that_they_call() {
    let asker = asked_for("kind: deep, frames: 13", "user-mode: {}\n");
    assert_eq!(
        asker,
        ["bpf_prog_put", "__start_BTF", "bpf_send_signal_task"]
    );
    let timer = asked_for(
        "kind: deep, frames: 13",
        "user-mode: { ask: itimer, signal: 27 }\n",
    );
    assert_eq!(timer, [""; 0]);
    let at_once = asked_for("kind: deep, frames: 13", "bpf: { stack: at-once }\n");
    assert_eq!(at_once, ["bpf_prog_put"]);
    let in_task_work = asked_for("kind: deep, frames: 13", "bpf: { stack: own-walk }\n");
    assert_eq!(
        in_task_work,
        [
            "bpf_prog_put",
            "__start_BTF",
            "bpf_task_work_schedule_resume"
        ]
    );
}
