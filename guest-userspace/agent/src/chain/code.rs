//! The addresses of the code in `chain.s`.

use unwindlab_abi::WorkloadKind;
use unwindlab_abi::message::UserSymbol;

/// Declares labels of `chain.s` and a safe function to take their addresses.
macro_rules! labels {
    ($($label:ident)*) => {
        #[allow(non_upper_case_globals, reason = "assembler labels")]
        mod label {
            unsafe extern "C" { $(pub(super) static $label: u8;)* }
        }
        $(#[inline]
        fn $label() -> u64 {
            // Only the address is taken; no byte is read.
            (&raw const label::$label).addr() as u64
        })*
    };
}

pub(super) use labels;

labels! {
    ul_root_start ul_root_return ul_root_end
    ul_exit_root_start ul_exit_root_return ul_exit_root_end
    ul_descend ul_descend_return ul_descend_leaf_return ul_descend_end
    ul_spin_leaf ul_spin_framed ul_spin_loop ul_spin_loop_end ul_spin_unframed ul_spin_end
    ul_syscalls_leaf ul_syscalls_framed ul_syscalls_call ul_syscalls_return
    ul_syscalls_return_end ul_syscalls_unframed ul_syscalls_end
    ul_deep_leaf ul_deep_framed ul_deep_call ul_deep_return ul_deep_return_end
    ul_deep_unframed ul_deep_end ul_deep_stub ul_deep_stub_end
    ul_sleep_leaf ul_sleep_framed ul_sleep_call ul_sleep_return ul_sleep_return_end
    ul_sleep_unframed ul_sleep_end
    ul_exit_leaf ul_exit_framed ul_exit_call ul_exit_return ul_exit_end
    ul_missing_leaf ul_missing_framed ul_missing_call ul_missing_return ul_missing_return_end
    ul_missing_unframed ul_missing_end
    ul_paged_leaf ul_paged_framed ul_paged_call ul_paged_return ul_paged_return_end
    ul_paged_unframed ul_paged_end
    ul_calls_leaf ul_calls_framed ul_calls_call ul_calls_return ul_calls_return_end
    ul_calls_unframed ul_calls_end
    ul_shapes_leaf ul_shapes_framed ul_shapes_begin ul_shapes_begin_end ul_shapes_call
    ul_shapes_return ul_shapes_return_end ul_shapes_unframed ul_shapes_end
    ul_shapes_handler ul_shapes_handler_end
    ul_own_handler ul_own_handler_return
    ul_fork_leaf ul_fork_framed ul_fork_call ul_fork_return ul_fork_return_end
    ul_fork_unframed ul_fork_end
    ul_process_leaf ul_process_framed ul_process_call ul_process_return ul_process_return_end
    ul_process_end
    ul_uring_leaf ul_uring_framed ul_uring_call ul_uring_return ul_uring_return_end
    ul_uring_unframed ul_uring_end
    ul_exec_leaf ul_exec_framed ul_exec_call ul_exec_return ul_exec_end
    ul_entry_leaf ul_entry_framed ul_entry_return ul_entry_handler ul_entry_unframed ul_entry_end
    ul_compat_root_return ul_compat_descend ul_compat_descend_return
    ul_compat_descend_leaf_return ul_compat_descend_end
    ul_compat_leaf ul_compat_framed ul_compat_nop ul_compat_nop_end ul_compat_unframed
    ul_compat_end ul_compat_sysenter
    ul_bare_start ul_bare_begin ul_bare_done ul_bare_root_return ul_bare_descend ul_bare_descend_pushed ul_bare_descend_lowered
    ul_bare_descend_return ul_bare_descend_leaf_return ul_bare_descend_raised
    ul_bare_descend_popped ul_bare_tail ul_bare_tail_pushed ul_bare_tail_popped ul_bare_leaf ul_bare_body
    ul_bare_leaf_pushed ul_bare_leaf_lowered ul_bare_call ul_bare_return ul_bare_return_end
    ul_bare_leaf_argument ul_bare_leaf_dropped ul_bare_leaf_raised ul_bare_leaf_popped ul_bare_end
    ul_bare_own_leaf ul_bare_own_pushed ul_bare_own_lowered ul_bare_own_return ul_bare_own_raised
    ul_bare_own_popped ul_bare_own_end
}

/// The part of a leaf in which its frame is complete.
pub(super) struct Framed {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The instruction behind the system call; 0 if the leaf makes none.
    pub(super) syscall_return: u64,
}

pub(super) fn framed(start: u64, end: u64, syscall_return: u64) -> Framed {
    Framed {
        start,
        end,
        syscall_return,
    }
}

/// The return addresses on the stack.
pub(super) struct Returns {
    /// Into the root.
    pub(super) root: u64,
    /// Into `descend`, from `descend`.
    pub(super) level: u64,
    /// Into `descend`, from the leaf.
    pub(super) innermost: u64,
}

/// The framed part of the leaf of a kind.
pub(super) fn framed_leaf(kind: WorkloadKind) -> Framed {
    match kind {
        WorkloadKind::Spin => framed(ul_spin_framed(), ul_spin_unframed(), 0),
        WorkloadKind::Syscalls => framed(
            ul_syscalls_framed(),
            ul_syscalls_unframed(),
            ul_syscalls_return(),
        ),
        // A program has a stack of its own, and the thread that waits for it never calls down.
        WorkloadKind::Deep
        | WorkloadKind::UnreadableEnds
        | WorkloadKind::Traced
        | WorkloadKind::Program => framed(ul_deep_framed(), ul_deep_unframed(), ul_deep_return()),
        WorkloadKind::SleepMigrate | WorkloadKind::Stuck => {
            framed(ul_sleep_framed(), ul_sleep_unframed(), ul_sleep_return())
        }
        WorkloadKind::Exit => framed(ul_exit_framed(), ul_exit_end(), ul_exit_return()),
        WorkloadKind::Exec | WorkloadKind::ExecByThread | WorkloadKind::CProgram => {
            framed(ul_exec_framed(), ul_exec_end(), ul_exec_return())
        }
        WorkloadKind::Compat
        | WorkloadKind::CompatSframe
        | WorkloadKind::CompatInt80
        | WorkloadKind::CompatSyscall
        | WorkloadKind::CompatSysenter => framed(ul_compat_framed(), ul_compat_unframed(), 0),
        // Its frame stands in the signal handler, too.
        WorkloadKind::Int80
        | WorkloadKind::PageFault
        | WorkloadKind::MajorFault
        | WorkloadKind::ProtectionFault
        | WorkloadKind::Int3
        | WorkloadKind::Int1
        | WorkloadKind::GpFault
        | WorkloadKind::SingleStep
        | WorkloadKind::Signals
        | WorkloadKind::Seccomp => framed(ul_entry_framed(), ul_entry_unframed(), 0),
        WorkloadKind::OwnStack | WorkloadKind::Waits | WorkloadKind::Raises => {
            framed(ul_entry_framed(), ul_entry_unframed(), ul_entry_return())
        }
        WorkloadKind::MissingPages => framed(
            ul_missing_framed(),
            ul_missing_unframed(),
            ul_missing_return(),
        ),
        WorkloadKind::IoUring
        | WorkloadKind::IoUringWorker
        | WorkloadKind::IoUringTimer
        | WorkloadKind::IoUringCooperative => {
            framed(ul_uring_framed(), ul_uring_unframed(), ul_uring_return())
        }
        WorkloadKind::PagedOut => framed(ul_paged_framed(), ul_paged_unframed(), ul_paged_return()),
        WorkloadKind::PerfCalls => {
            framed(ul_calls_framed(), ul_calls_unframed(), ul_calls_return())
        }
        WorkloadKind::Shapes => {
            framed(ul_shapes_framed(), ul_shapes_unframed(), ul_shapes_return())
        }
        WorkloadKind::Fork | WorkloadKind::Vfork | WorkloadKind::Clone3 => {
            framed(ul_fork_framed(), ul_fork_unframed(), ul_fork_return())
        }
        // All of it: a section describes each instruction.
        WorkloadKind::Frameless
        | WorkloadKind::SframeHostile
        | WorkloadKind::SframeFields
        | WorkloadKind::SframeReads
        | WorkloadKind::SframeLives => framed(ul_bare_tail(), ul_bare_end(), ul_bare_return()),
        WorkloadKind::OwnStackFrameless => {
            framed(ul_bare_own_leaf(), ul_bare_own_end(), ul_bare_own_return())
        }
        WorkloadKind::Interpreter | WorkloadKind::UserUnwind => super::interpreter::framed_leaf(),
        // F1 and F2 judge it.
        WorkloadKind::FramelessShapes | WorkloadKind::UserUnwindFrameless => framed(0, 0, 0),
        WorkloadKind::Process | WorkloadKind::ExitGroup | WorkloadKind::Killed => {
            framed(ul_process_framed(), ul_process_end(), ul_process_return())
        }
    }
}

/// The return addresses of a kind's chain.
pub(super) fn returns(kind: WorkloadKind) -> Returns {
    match kind {
        WorkloadKind::Exit => Returns {
            root: ul_exit_root_return(),
            level: ul_descend_return(),
            innermost: ul_descend_leaf_return(),
        },
        kind if super::is_compat(kind) => Returns {
            root: ul_compat_root_return(),
            level: ul_compat_descend_return(),
            innermost: ul_compat_descend_leaf_return(),
        },
        kind if kind.is_frameless() => Returns {
            root: ul_bare_root_return(),
            level: ul_bare_descend_return(),
            innermost: ul_bare_descend_leaf_return(),
        },
        _ => Returns {
            root: ul_root_return(),
            level: ul_descend_return(),
            innermost: ul_descend_leaf_return(),
        },
    }
}

/// A function without a frame pointer.
#[derive(Debug)]
pub(super) struct Bare {
    pub(super) start: u64,
    pub(super) end: u64,
    /// From which address on the CFA is how many bytes above the stack pointer; none for the
    /// outermost.
    pub(super) rows: Vec<(u64, i32)>,
}

/// The functions of `frameless`, in order, and what each instruction does to the CFA.
pub(super) fn bare() -> [Bare; 4] {
    let bare = |start, end, rows| Bare { start, end, rows };
    [
        bare(ul_bare_start(), ul_bare_descend(), Vec::new()),
        bare(
            ul_bare_descend(),
            ul_bare_tail(),
            vec![
                (ul_bare_descend(), 8),
                (ul_bare_descend_pushed(), 16),
                (ul_bare_descend_lowered(), 40),
                (ul_bare_descend_raised(), 16),
                (ul_bare_descend_popped(), 8),
            ],
        ),
        bare(
            ul_bare_tail(),
            ul_bare_leaf(),
            vec![
                (ul_bare_tail(), 8),
                (ul_bare_tail_pushed(), 16),
                (ul_bare_tail_popped(), 8),
            ],
        ),
        bare(
            ul_bare_leaf(),
            ul_bare_end(),
            vec![
                (ul_bare_leaf(), 8),
                (ul_bare_leaf_pushed(), 16),
                (ul_bare_leaf_lowered(), 0x1010),
                (ul_bare_leaf_argument(), 0x1018),
                (ul_bare_leaf_dropped(), 0x1010),
                (ul_bare_leaf_raised(), 16),
                (ul_bare_leaf_popped(), 8),
            ],
        ),
    ]
}

/// The leaf of `own-stack-frameless`, which lies behind the functions of `frameless`.
pub(super) fn bare_own_leaf() -> Bare {
    Bare {
        start: ul_bare_own_leaf(),
        end: ul_bare_own_end(),
        rows: vec![
            (ul_bare_own_leaf(), 8),
            (ul_bare_own_pushed(), 16),
            (ul_bare_own_lowered(), 0x1010),
            (ul_bare_own_raised(), 16),
            (ul_bare_own_popped(), 8),
        ],
    }
}

/// Where the recursion of `frameless` starts.
pub(super) fn bare_recursion() -> u64 {
    ul_bare_descend()
}

/// Where the function of its tail call starts.
pub(super) fn bare_tail_call() -> u64 {
    ul_bare_tail()
}

/// The parts of `frameless` in which callers are found in one way: start and end of the root
/// between its marks, the recursion, the function of the tail call, and the leaf.
pub(super) fn bare_parts() -> [(u64, u64); 4] {
    [
        (ul_bare_begin(), ul_bare_done()),
        (ul_bare_descend(), ul_bare_tail()),
        (ul_bare_tail(), ul_bare_leaf()),
        (ul_bare_leaf(), ul_bare_end()),
    ]
}

/// Start and end of the functions of the 32-bit chain.
pub(super) fn compat_text() -> (u64, u64) {
    (ul_compat_descend(), ul_compat_end())
}

/// The 32-bit function that executes `sysenter`.
pub(super) fn compat_sysenter() -> u64 {
    ul_compat_sysenter()
}

/// The signal handler of the leaf of entries.
pub(super) fn handler() -> usize {
    usize::try_from(ul_entry_handler()).unwrap_or(0)
}

/// The signal handler of `own-stack`, and the instruction behind its system call.
pub(super) fn own_handler() -> [u64; 2] {
    [ul_own_handler(), ul_own_handler_return()]
}

/// The address of the leaf of a kind.
pub(super) fn leaf(kind: WorkloadKind) -> u64 {
    match kind {
        WorkloadKind::Spin => ul_spin_leaf(),
        WorkloadKind::Syscalls => ul_syscalls_leaf(),
        WorkloadKind::Deep
        | WorkloadKind::UnreadableEnds
        | WorkloadKind::Traced
        | WorkloadKind::Program => ul_deep_stub(),
        WorkloadKind::SleepMigrate | WorkloadKind::Stuck => ul_sleep_leaf(),
        WorkloadKind::Exit => ul_exit_leaf(),
        WorkloadKind::Exec | WorkloadKind::ExecByThread | WorkloadKind::CProgram => ul_exec_leaf(),
        WorkloadKind::Compat
        | WorkloadKind::CompatSframe
        | WorkloadKind::CompatInt80
        | WorkloadKind::CompatSyscall
        | WorkloadKind::CompatSysenter => ul_compat_leaf(),
        WorkloadKind::Int80
        | WorkloadKind::PageFault
        | WorkloadKind::MajorFault
        | WorkloadKind::ProtectionFault
        | WorkloadKind::Int3
        | WorkloadKind::Int1
        | WorkloadKind::GpFault
        | WorkloadKind::SingleStep
        | WorkloadKind::Signals
        | WorkloadKind::OwnStack
        | WorkloadKind::Waits
        | WorkloadKind::Raises
        | WorkloadKind::Seccomp => ul_entry_leaf(),
        WorkloadKind::MissingPages => ul_missing_leaf(),
        WorkloadKind::IoUring
        | WorkloadKind::IoUringWorker
        | WorkloadKind::IoUringTimer
        | WorkloadKind::IoUringCooperative => ul_uring_leaf(),
        WorkloadKind::PagedOut => ul_paged_leaf(),
        WorkloadKind::PerfCalls => ul_calls_leaf(),
        WorkloadKind::Shapes => ul_shapes_leaf(),
        WorkloadKind::Interpreter | WorkloadKind::UserUnwind => super::interpreter::start(),
        WorkloadKind::Frameless
        | WorkloadKind::FramelessShapes
        | WorkloadKind::UserUnwindFrameless
        | WorkloadKind::SframeHostile
        | WorkloadKind::SframeFields
        | WorkloadKind::SframeReads
        | WorkloadKind::SframeLives => ul_bare_leaf(),
        WorkloadKind::OwnStackFrameless => ul_bare_own_leaf(),
        WorkloadKind::Fork | WorkloadKind::Vfork | WorkloadKind::Clone3 => ul_fork_leaf(),
        WorkloadKind::Process | WorkloadKind::ExitGroup | WorkloadKind::Killed => ul_process_leaf(),
    }
}

/// The address of the signal handler of `shapes`.
pub fn signal_handler() -> u64 {
    ul_shapes_handler()
}

/// The symbol of a program that the host compiled.
pub const C_BEGIN: &str = "c_begin";

/// The symbols by which scenarios and reports name the workloads' code.
///
/// | name | what |
/// |---|---|
/// | `root`, `exit_root` | start of a chain; `exit_root` for threads of kind `exit` |
/// | `descend` | the recursion between root and leaf |
/// | `KIND_leaf` | the innermost function of a kind: `spin`, `syscalls`, `deep`, `sleep`, `exit`, `missing`, `paged`, `calls`, `uring`, `exec`, `compat`, `process`, `shapes`, `bare` for `frameless`, and `fork` for `fork`, `vfork` and `clone3` |
/// | `deep_stub` | the stub that jumps to `deep_leaf`, through which it is called |
/// | `entry_leaf` | the leaf of the kinds that are about one way into the kernel |
/// | `compat_descend`, `compat_nop` | the 32-bit recursion, and the instruction without effect in its leaf |
/// | `shapes_begin`, `shapes_handler` | the instruction before the calls of the leaf `shapes`, and the handler of its signal |
/// | `spin_loop` | the instruction that a spinning thread executes most of the time |
/// | `bare_begin` | where an iteration of `frameless` begins, in its root |
/// | `bare_descend`, `bare_body` | the recursion of `frameless`, and its leaf without the last instruction |
/// | `odd_begin`, `odd_late`, `odd_gone`, `odd_handler` | parts of `frameless-shapes`: its begin, where its page's section is registered and where it is gone, and the handler of its signal |
/// | `c_begin` | where the program of `c-program` begins to call down |
/// | `interpret`, `native_leaf` | the interpreter, and the native leaf that its program calls |
/// | `KIND_call` | the `syscall` instruction of a leaf that has one |
/// | `KIND_return` | the instruction after it (`exit_return` never runs) |
///
/// Names may overlap: the one-instruction names lie within their leaf.
#[must_use]
pub fn symbols() -> Vec<UserSymbol> {
    [
        ("root", ul_root_start(), ul_root_end()),
        ("exit_root", ul_exit_root_start(), ul_exit_root_end()),
        ("descend", ul_descend(), ul_descend_end()),
        ("spin_leaf", ul_spin_leaf(), ul_spin_end()),
        ("spin_loop", ul_spin_loop(), ul_spin_loop_end()),
        ("syscalls_leaf", ul_syscalls_leaf(), ul_syscalls_end()),
        ("syscalls_call", ul_syscalls_call(), ul_syscalls_return()),
        (
            "syscalls_return",
            ul_syscalls_return(),
            ul_syscalls_return_end(),
        ),
        ("deep_stub", ul_deep_stub(), ul_deep_stub_end()),
        ("deep_leaf", ul_deep_leaf(), ul_deep_end()),
        ("deep_call", ul_deep_call(), ul_deep_return()),
        ("deep_return", ul_deep_return(), ul_deep_return_end()),
        ("sleep_leaf", ul_sleep_leaf(), ul_sleep_end()),
        ("sleep_call", ul_sleep_call(), ul_sleep_return()),
        ("sleep_return", ul_sleep_return(), ul_sleep_return_end()),
        ("exit_leaf", ul_exit_leaf(), ul_exit_end()),
        ("exit_call", ul_exit_call(), ul_exit_return()),
        ("exit_return", ul_exit_return(), ul_exit_end()),
        ("missing_leaf", ul_missing_leaf(), ul_missing_end()),
        ("missing_call", ul_missing_call(), ul_missing_return()),
        (
            "missing_return",
            ul_missing_return(),
            ul_missing_return_end(),
        ),
        ("paged_leaf", ul_paged_leaf(), ul_paged_end()),
        ("paged_call", ul_paged_call(), ul_paged_return()),
        ("paged_return", ul_paged_return(), ul_paged_return_end()),
        ("calls_leaf", ul_calls_leaf(), ul_calls_end()),
        ("calls_call", ul_calls_call(), ul_calls_return()),
        ("calls_return", ul_calls_return(), ul_calls_return_end()),
        ("uring_leaf", ul_uring_leaf(), ul_uring_end()),
        ("uring_call", ul_uring_call(), ul_uring_return()),
        ("uring_return", ul_uring_return(), ul_uring_return_end()),
        ("exec_leaf", ul_exec_leaf(), ul_exec_end()),
        ("exec_call", ul_exec_call(), ul_exec_return()),
        ("exec_return", ul_exec_return(), ul_exec_end()),
        ("entry_leaf", ul_entry_leaf(), ul_entry_end()),
        (
            "compat_descend",
            ul_compat_descend(),
            ul_compat_descend_end(),
        ),
        ("compat_leaf", ul_compat_leaf(), ul_compat_end()),
        ("compat_nop", ul_compat_nop(), ul_compat_nop_end()),
        ("process_leaf", ul_process_leaf(), ul_process_end()),
        ("process_call", ul_process_call(), ul_process_return()),
        (
            "process_return",
            ul_process_return(),
            ul_process_return_end(),
        ),
        ("fork_leaf", ul_fork_leaf(), ul_fork_end()),
        ("fork_call", ul_fork_call(), ul_fork_return()),
        ("fork_return", ul_fork_return(), ul_fork_return_end()),
        ("shapes_leaf", ul_shapes_leaf(), ul_shapes_end()),
        ("shapes_begin", ul_shapes_begin(), ul_shapes_begin_end()),
        ("shapes_call", ul_shapes_call(), ul_shapes_return()),
        ("shapes_return", ul_shapes_return(), ul_shapes_return_end()),
        (
            "shapes_handler",
            ul_shapes_handler(),
            ul_shapes_handler_end(),
        ),
        ("bare_begin", ul_bare_begin(), ul_bare_root_return()),
        ("bare_descend", ul_bare_descend(), ul_bare_tail()),
        ("bare_leaf", ul_bare_leaf(), ul_bare_end()),
        ("bare_body", ul_bare_body(), ul_bare_leaf_popped()),
        ("bare_call", ul_bare_call(), ul_bare_return()),
        ("bare_return", ul_bare_return(), ul_bare_return_end()),
        // Known where there is such a program.
        (C_BEGIN, 0, 0),
    ]
    .into_iter()
    .map(|(name, start, end)| UserSymbol {
        name: name.to_owned(),
        start,
        end,
    })
    .chain(super::odd::symbols())
    .chain(super::interpreter::symbols())
    .collect()
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::USER_SYMBOLS;

    #[test]
    fn announced_names_are_those_of_the_abi() {
        let announced: Vec<String> = super::symbols().into_iter().map(|it| it.name).collect();
        assert_eq!(announced, USER_SYMBOLS);
    }
}
