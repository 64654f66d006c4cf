//! Why a vCPU stops.

use crate::debug::DataBreakpoint;

/// Why a vCPU is stopped. It stays stopped until it is resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The caller paused it, or has not started the machine yet.
    Paused,
    /// It is about to execute the instruction at a breakpoint.
    Breakpoint {
        /// The breakpoint's address.
        pc: u64,
    },
    /// It made an access that meets breakpoints on data. The access is complete: the next
    /// instruction is the one after it (and a requested single step is done).
    Data {
        /// The next instruction's address.
        pc: u64,
        /// The breakpoints.
        met: Vec<DataBreakpoint>,
    },
    /// It is back at a breakpoint that stopped it before ([`Stop::Breakpoint`]), after an NMI or
    /// interrupt that it took there, or a fault of the instruction. This is not a new arrival:
    /// resume it as after the first stop. (At a hardware breakpoint it does not stop again.)
    BackAtBreakpoint {
        /// The breakpoint's address.
        pc: u64,
    },
    /// It executed one instruction.
    Stepped {
        /// The next instruction's address.
        pc: u64,
    },
    /// It wrote to a doorbell port. The `out` is complete: the next instruction is the one after
    /// it (and a requested single step is done). A `rep outs` stops for each of its items.
    Port {
        /// The port.
        port: u16,
        /// Bytes written: 1, 2 or 4.
        size: u8,
        /// The value written.
        value: u32,
    },
    /// It made a watched access ([`VcpuHandle::watch`](crate::VcpuHandle::watch)), which is
    /// complete and answered: the next instruction is the one after it (and a requested single
    /// step is done).
    Access(Access),
    /// It is about to return to user mode in a way that cannot be noted
    /// ([`Machine::watch_returns`](crate::Machine::watch_returns)).
    StrangeReturn {
        /// The instruction's address.
        pc: u64,
        /// What is strange.
        why: String,
    },
    /// Triple fault. KVM may have reset the vCPU's registers already.
    Shutdown,
    /// The guest requested a reset by a port.
    Reset {
        /// The port.
        port: u16,
    },
    /// KVM could not continue.
    InternalError {
        /// KVM's kind of error; 1: an instruction that its emulator does not know.
        suberror: u32,
        /// KVM's details, whose meaning depends on the kind.
        details: Vec<u64>,
        /// The address of the instruction; 0 if the registers cannot be read.
        pc: u64,
        /// The instruction's bytes; empty if they cannot be read.
        code: Vec<u8>,
    },
    /// The CPU refused to enter the guest: its state is invalid.
    FailEntry {
        /// The CPU's reason.
        reason: u64,
        /// The host CPU.
        cpu: u32,
    },
    /// The guest told KVM of a shutdown, reset or crash.
    SystemEvent {
        /// KVM's kind of event.
        kind: u32,
        /// Details.
        data: Vec<u64>,
    },
    /// `hlt`, on a KVM that does not wait for an interrupt itself.
    Halted,
    /// The guest made an access that the device or the counter behind it does not have.
    BadAccess {
        /// Description of the access.
        what: String,
    },
    /// An exit that this VMM does not handle.
    Unhandled {
        /// Description of the exit.
        exit: String,
    },
    /// The vCPU's thread has ended; the vCPU cannot be used any more.
    ThreadDied {
        /// The reason.
        reason: String,
    },
}

/// The kind of a guest's access that KVM leaves to this VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads a port that is not KVM's.
    In,
    /// Writes a port that is not KVM's and not a doorbell.
    Out,
    /// Reads a physical address that is neither RAM nor a device of KVM's.
    MmioRead,
    /// Writes one.
    MmioWrite,
    /// Reads a synthetic counter's MSR.
    Rdmsr,
    /// Writes one.
    Wrmsr,
    /// Reads a synthetic counter.
    Rdpmc,
}

/// An access of the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The kind.
    pub kind: AccessKind,
    /// Port, physical address, MSR or counter.
    pub number: u64,
}

/// Accesses that stop a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// The kind.
    pub kind: AccessKind,
    /// The only number to watch; `None` for all.
    pub number: Option<u64>,
}

impl Watched {
    pub(crate) fn covers(&self, access: Access) -> bool {
        self.kind == access.kind && self.number.is_none_or(|number| number == access.number)
    }
}
