//! The entry code of a kernel: what the addresses at the bottom of a kernel chain say of the entry.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// The text of the kernel under test.
pub trait KernelText {
    /// The symbol that holds an address, and the offset in it.
    fn symbol(&self, address: u64) -> Option<(String, u64)>;
    /// Up to so many bytes of text as linked.
    fn code(&self, address: u64, length: usize) -> Option<Vec<u8>>;
}

/// What a function of the entry code is for. Names are those of arch/x86/entry and kernel/entry of
/// Linux 7.0 to 7.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Assembly stub of a system call.
    SystemCallStub,
    /// Assembly stub of an interrupt or exception.
    InterruptStub,
    /// The part of the NMI's stub that runs when the NMI hit user mode.
    UserNmiStub,
    /// The rest of the NMI's stub.
    NmiStub,
    /// Where a new task begins.
    Fork,
    /// Calls the system call, and does the work before and after it.
    Dispatch,
    /// The system call itself.
    SystemCall,
    /// Writes `sys_enter`.
    Enter,
    /// Writes `sys_exit`.
    Leave,
    /// Handler of an interrupt or exception.
    Handler,
    /// The end of an interrupt or exception: exit work and reset.
    InterruptExit,
    /// The loop of the exit work.
    ExitLoop,
    /// What that loop calls. It looks for more work when this has returned.
    ExitWork,
    /// Anything else.
    Other,
}

impl Code {
    fn of(name: &str) -> Self {
        let name = name.split('.').next().unwrap_or(name);
        match name {
            "asm_exc_nmi" => Self::UserNmiStub,
            "nested_nmi" | "nested_nmi_out" | "first_nmi" | "repeat_nmi" | "end_repeat_nmi" => {
                Self::NmiStub
            }
            "asm_int80_emulation" | "int80_emulation" | "syscall_return_via_sysret" => {
                Self::SystemCallStub
            }
            "ret_from_fork_asm" => Self::Fork,
            "do_syscall_64"
            | "do_fast_syscall_32"
            | "__do_fast_syscall_32"
            | "do_SYSENTER_32"
            | "do_int80_emulation"
            | "do_int80_syscall_32"
            | "ret_from_fork"
            | "syscall_exit_to_user_mode" => Self::Dispatch,
            "x64_sys_call" | "ia32_sys_call" | "x32_sys_call" => Self::SystemCall,
            "trace_syscall_enter" | "syscall_trace_enter" => Self::Enter,
            "trace_syscall_exit" => Self::Leave,
            "irq_enter_rcu"
            | "irq_exit_rcu"
            | "__common_interrupt"
            | "do_user_addr_fault"
            | "do_kern_addr_fault"
            | "handle_page_fault"
            | "notify_die"
            | "do_trap"
            | "do_error_trap"
            | "schedule_tail"
            | "__SCT__tp_func_page_fault_user" => Self::Handler,
            "irqentry_exit" | "irqentry_exit_to_user_mode" => Self::InterruptExit,
            "exit_to_user_mode_loop" => Self::ExitLoop,
            "task_work_run"
            | "schedule"
            | "arch_do_signal_or_restart"
            | "uprobe_notify_resume"
            | "__rseq_handle_slowpath"
            | "klp_update_patch_state" => Self::ExitWork,
            _ if name.starts_with("entry_SYSCALL_64") || name.starts_with("entry_SYSRET") => {
                Self::SystemCallStub
            }
            _ if name.starts_with("entry_SYSENTER_compat")
                || name.starts_with("entry_SYSCALL_compat") =>
            {
                Self::SystemCallStub
            }
            _ if name.starts_with("asm_sysvec_")
                || name.starts_with("asm_exc_")
                || name.starts_with("asm_common_interrupt")
                || name.starts_with("asm_spurious_interrupt") =>
            {
                Self::InterruptStub
            }
            _ if Self::system_call(name).is_some() => Self::SystemCall,
            _ if name.starts_with("__sysvec_") => Self::Handler,
            _ => Self::Other,
        }
    }

    /// Whether a function of this name is entered by an interrupt, an exception or an NMI.
    pub(crate) fn is_entry(name: &str) -> bool {
        Self::of(name).interrupts()
    }

    /// The system call that a function of this name is (`__SYSCALL_DEFINEx`, arch/x86/include/asm/syscall_wrapper.h, 7.3).
    pub(crate) fn system_call(name: &str) -> Option<&str> {
        { ["__x64_sys_", "__ia32_sys_", "__ia32_compat_sys_"].iter() }
            .find_map(|prefix| name.strip_prefix(prefix))
    }

    /// Whether a function of this name is the part of the NMI's stub for NMIs that hit the kernel.
    pub(crate) fn is_nmi(name: &str) -> bool {
        Self::of(name) == Self::NmiStub
    }

    /// Whether the address behind this one in a chain is an interrupted instruction.
    pub fn interrupts(self) -> bool {
        matches!(
            self,
            Self::InterruptStub | Self::UserNmiStub | Self::NmiStub
        )
    }
}

/// An address of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The function that holds it.
    pub holds: Code,
    /// The function that it is the return address of a call to; `Other` if that is not known.
    pub calls: Code,
}

/// Bytes of a direct call.
const CALL: usize = 5;
/// A stub of a system call is shorter.
const STUB: usize = 1024;

/// The entry code of a kernel. Looks at each address once.
pub struct EntryCode<'k> {
    text: Box<dyn KernelText + 'k>,
    frames: RefCell<BTreeMap<u64, Frame>>,
    /// By start of a stub: where its call of the dispatcher returns to.
    dispatched: RefCell<BTreeMap<u64, Option<u64>>>,
}

impl std::fmt::Debug for EntryCode<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("EntryCode").finish_non_exhaustive()
    }
}

impl<'k> EntryCode<'k> {
    /// Of a kernel. Looks at nothing yet.
    #[must_use]
    pub fn new(text: impl KernelText + 'k) -> Self {
        Self {
            text: Box::new(text),
            frames: RefCell::new(BTreeMap::new()),
            dispatched: RefCell::new(BTreeMap::new()),
        }
    }

    pub(super) fn frame(&self, address: u64) -> Frame {
        if let Some(known) = self.frames.borrow().get(&address) {
            return *known;
        }
        let holds = self.function(address).map_or(Code::Other, |(code, _)| code);
        let calls = address.checked_sub(CALL as u64).and_then(|at| {
            let bytes = self.text.code(at, CALL)?;
            self.function(called(at, &bytes)?)
        });
        let frame = Frame {
            holds,
            calls: match calls {
                Some((code, 0)) => code,
                _ => Code::Other,
            },
        };
        self.frames.borrow_mut().insert(address, frame);
        frame
    }

    fn function(&self, address: u64) -> Option<(Code, u64)> {
        let (name, offset) = self.text.symbol(address)?;
        Some((Code::of(&name), offset))
    }

    /// Whether an instruction of a system call's stub comes before the call of the dispatcher.
    pub(super) fn is_before_dispatch(&self, address: u64) -> bool {
        let start = self.start_of_stub(address);
        let known = self.dispatched.borrow().get(&start).copied();
        let returns = known.unwrap_or_else(|| {
            let found = self.find_dispatch(start);
            self.dispatched.borrow_mut().insert(start, found);
            found
        });
        returns.is_some_and(|returns| address < returns)
    }

    /// The stub's first symbol: labels inside it are symbols of their own.
    fn start_of_stub(&self, address: u64) -> u64 {
        let mut start = address;
        while let Some((Code::SystemCallStub, offset)) = self.function(start) {
            start -= offset;
            match start.checked_sub(1).and_then(|at| self.function(at)) {
                Some((Code::SystemCallStub, _)) if address - start < STUB as u64 => start -= 1,
                _ => break,
            }
        }
        start
    }

    fn find_dispatch(&self, start: u64) -> Option<u64> {
        let bytes = self.text.code(start, STUB)?;
        let calls = bytes.windows(CALL).zip(start..);
        let mut dispatch = calls.filter(|(bytes, at)| {
            let target = called(*at, bytes).and_then(|target| self.function(target));
            target == Some((Code::Dispatch, 0))
        });
        dispatch.next().map(|(_, at)| at + CALL as u64)
    }
}

/// The target of the direct call at this address, if one is there.
fn called(at: u64, bytes: &[u8]) -> Option<u64> {
    let [0xe8, distance @ ..] = bytes else {
        return None;
    };
    let distance = i32::from_le_bytes(distance.first_chunk().copied()?);
    Some(
        at.wrapping_add(CALL as u64)
            .wrapping_add_signed(distance.into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::entry_text::EntryText;

    #[test]
    fn functions_are_told_by_their_names() {
        for (name, code) in [
            ("asm_exc_nmi", Code::UserNmiStub),
            ("end_repeat_nmi", Code::NmiStub),
            ("asm_int80_emulation", Code::SystemCallStub),
            ("entry_SYSCALL_64_safe_stack", Code::SystemCallStub),
            ("entry_SYSRETQ_unsafe_stack", Code::SystemCallStub),
            ("entry_SYSENTER_compat", Code::SystemCallStub),
            ("entry_SYSCALL_compat_after_hwframe", Code::SystemCallStub),
            ("asm_sysvec_call_function", Code::InterruptStub),
            ("asm_exc_page_fault", Code::InterruptStub),
            ("asm_common_interrupt", Code::InterruptStub),
            ("asm_spurious_interrupt", Code::InterruptStub),
            ("ret_from_fork_asm", Code::Fork),
            ("do_syscall_64", Code::Dispatch),
            ("x64_sys_call.constprop.0", Code::SystemCall),
            ("__x64_sys_getppid", Code::SystemCall),
            ("__ia32_sys_getppid", Code::SystemCall),
            ("__ia32_compat_sys_ioctl", Code::SystemCall),
            ("__sysvec_apic_timer_interrupt", Code::Handler),
            ("schedule", Code::ExitWork),
            ("vfs_read", Code::Other),
            ("", Code::Other),
        ] {
            assert_eq!(Code::of(name), code, "{name}");
        }
        assert!(Code::is_nmi("repeat_nmi") && !Code::is_nmi("asm_exc_nmi"));
        assert!(Code::is_entry("repeat_nmi") && !Code::is_entry("do_syscall_64"));
    }

    /// A stub in which labels are symbols, and the call of the dispatcher returns to 0x45.
    #[test]
    fn what_comes_before_the_call_of_the_dispatcher_is_told_behind_labels_too() {
        let code = EntryCode::new(EntryText);
        let is_before = |offset: u64| code.is_before_dispatch(0xffff_ffff_8300_0000 + offset);
        assert!(
            [0, 4, 0x1f, 0x20, 0x30, 0x44]
                .map(is_before)
                .iter()
                .all(|it| *it)
        );
        assert!(![0x45, 0x50, 0xff].map(is_before).iter().any(|it| *it));
    }

    /// Labels that go on for longer than any stub are not one.
    #[test]
    fn the_start_of_a_stub_is_looked_for_in_the_length_of_one() {
        struct Labels;
        impl KernelText for Labels {
            fn symbol(&self, address: u64) -> Option<(String, u64)> {
                let label = "entry_SYSCALL_64_label".to_owned();
                (address >= 0x1000).then_some((label, address % 0x100))
            }
            fn code(&self, _: u64, _: usize) -> Option<Vec<u8>> {
                None
            }
        }
        let code = EntryCode::new(Labels);
        assert_eq!(code.start_of_stub(0x1210), 0x1000);
        assert_eq!(code.start_of_stub(0x2010), 0x1c00);
        assert_eq!(code.start_of_stub(0x10), 0x10, "no stub");
    }
}
