//! The text of a kernel that has nothing but entry code, and chains through it.

use crate::invariant::evidence::KernelText;

/// What an NMI's chain starts with where it hit user mode: the handler, then the call in the stub.
pub const USER_NMI_FRAMES: [u64; 2] = [0xffff_ffff_8200_0010, at(0x3820)];

const fn at(offset: u64) -> u64 {
    0xffff_ffff_8300_0000 + offset
}

const SYMBOLS: &[(u64, &str)] = &[
    (0xffff_ffff_8100_0000, "somewhere"),
    (0xffff_ffff_8200_0000, "default_do_nmi"),
    (0xffff_ffff_8200_0018, "end_repeat_nmi"),
    (0xffff_ffff_8200_0030, "elsewhere"),
    (at(0x0000), "entry_SYSCALL_64"),
    (at(0x0020), "entry_SYSCALL_64_after_hwframe"),
    (at(0x0100), "nothing"),
    (at(0x1000), "do_syscall_64"),
    (at(0x2000), "x64_sys_call"),
    (at(0x2100), "trace_syscall_enter"),
    (at(0x2200), "trace_syscall_exit"),
    (at(0x2300), "exit_to_user_mode_loop"),
    (at(0x2400), "task_work_run"),
    (at(0x2500), "schedule"),
    (at(0x2600), "nothing"),
    (at(0x2700), "__x64_sys_getppid"),
    (at(0x2800), "nothing"),
    (at(0x3000), "asm_sysvec_apic_timer_interrupt"),
    (at(0x3100), "sysvec_apic_timer_interrupt"),
    (at(0x3200), "__sysvec_apic_timer_interrupt"),
    (at(0x3300), "irqentry_exit"),
    (at(0x3400), "asm_exc_page_fault"),
    (at(0x3500), "exc_page_fault"),
    (at(0x3600), "do_user_addr_fault"),
    (at(0x3800), "asm_exc_nmi"),
    (at(0x3900), "nothing"),
    (at(0x3a00), "ret_from_fork_asm"),
    (at(0x3b00), "ret_from_fork"),
    (at(0x3c00), "schedule_tail"),
    (at(0x3d00), "nothing"),
];

/// Where a call returns to, and what it calls.
const CALLS: &[(u64, u64)] = &[
    (at(0x0045), at(0x1000)),
    (at(0x1010), at(0x2100)),
    (at(0x1020), at(0x2000)),
    (at(0x1030), at(0x2200)),
    (at(0x1040), at(0x2300)),
    (at(0x2310), at(0x2400)),
    (at(0x2320), at(0x2500)),
    (at(0x3010), at(0x3100)),
    (at(0x3110), at(0x3200)),
    (at(0x3120), at(0x3300)),
    (at(0x3310), at(0x2300)),
    (at(0x3410), at(0x3500)),
    (at(0x3510), at(0x3600)),
    (at(0x3520), at(0x3300)),
    (at(0x3a10), at(0x3b00)),
    (at(0x3b10), at(0x3c00)),
];

/// The kernel that has it.
#[derive(Debug)]
pub struct EntryText;

impl KernelText for EntryText {
    fn symbol(&self, address: u64) -> Option<(String, u64)> {
        let next = SYMBOLS.partition_point(|&(start, _)| start <= address);
        let &(start, name) = SYMBOLS.get(next.checked_sub(1)?)?;
        (name != "nothing").then(|| (name.to_owned(), address - start))
    }

    fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0x90; length];
        for &(returns, target) in CALLS {
            let distance = i32::try_from(target.cast_signed() - returns.cast_signed()).unwrap();
            let call = [&[0xe8][..], &distance.to_le_bytes()].concat();
            for (at, byte) in (returns - 5..).zip(call) {
                let within = at
                    .checked_sub(address)
                    .and_then(|it| usize::try_from(it).ok());
                if let Some(into) = within.and_then(|it| bytes.get_mut(it)) {
                    *into = byte;
                }
            }
        }
        Some(bytes)
    }
}

/// How a task came into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Syscall,
    Tick,
    Fault,
    Fork,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Far {
    /// In the stub, before the dispatcher is called.
    Stub,
    /// Writing `sys_enter`.
    Before,
    Body,
    /// Writing `sys_exit`.
    After,
    /// In the task work.
    Work,
    /// Behind the exit work.
    Late,
}

/// The frames outside of the function that a sample was made in. Of [`Far::Stub`] and
/// [`Far::Late`] the first is the interrupted instruction itself.
pub fn outer(via: Via, far: Far) -> Vec<u64> {
    let offsets: &[u64] = match (via, far) {
        (Via::Fault, Far::Stub) => &[0x3409],
        (_, Far::Stub) => &[0x0004],
        (Via::Syscall, Far::Before) => &[0x1010, 0x0045],
        // The dispatcher jumps to the call.
        (Via::Syscall, Far::Body) => &[0x2710, 0x1020, 0x0045],
        (Via::Syscall, Far::After) => &[0x1030, 0x0045],
        (Via::Syscall, Far::Work) => &[0x2404, 0x2310, 0x1040, 0x0045],
        (Via::Syscall, Far::Late) => &[0x1050, 0x0045],
        (Via::Tick, Far::Work) => &[0x2404, 0x2310, 0x3310, 0x3120, 0x3010],
        (Via::Tick, Far::Late) => &[0x3330, 0x3120, 0x3010],
        (Via::Tick, _) => &[0x3110, 0x3010],
        (Via::Fault, Far::Work) => &[0x2404, 0x2310, 0x3310, 0x3520, 0x3410],
        (Via::Fault, Far::Late) => &[0x3330, 0x3520, 0x3410],
        (Via::Fault, _) => &[0x3510, 0x3410],
        (Via::Fork, Far::Late) => &[0x3b30, 0x3a10],
        (Via::Fork, _) => &[0x3b10, 0x3a10],
    };
    offsets.iter().map(|&offset| at(offset)).collect()
}
