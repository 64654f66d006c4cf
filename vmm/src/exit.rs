//! Why a vCPU stops, and how KVM's exits become those reasons.

use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION, KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES,
    kvm_debug_exit_arch,
};
use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::devices::ports::{Ports, Written};
use crate::msr;
use crate::pmu::{Counters, RDPMC_PORT};
use crate::traps::TRAP_PORT;

/// Why a vCPU is stopped. It stays so until it is resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The caller asked for it, or the machine was not started yet.
    Paused,
    /// It is about to execute the instruction at a breakpoint.
    Breakpoint {
        /// The breakpoint's address.
        pc: u64,
    },
    /// It is back at a breakpoint where it stopped before ([`Stop::Breakpoint`]), after the NMI or
    /// the interrupt that it took there, or a fault of the instruction: nothing new. It goes on as
    /// it was to go on then. (With a breakpoint of the CPU's own it does so unseen.)
    Again {
        /// The breakpoint's address.
        pc: u64,
    },
    /// It executed one instruction.
    Stepped {
        /// The next instruction's address.
        pc: u64,
    },
    /// It wrote to a doorbell port. The `out` is complete: the next instruction is the one
    /// after it (and a single step that was asked for is done). A `rep outs` stops for each
    /// of its items.
    Port {
        /// The port.
        port: u16,
        /// Bytes written: 1, 2 or 4.
        size: u8,
        /// What was written.
        value: u32,
    },
    /// It made an access that is watched for ([`VcpuHandle::watch`](crate::VcpuHandle::watch)), which
    /// is complete and answered: the next instruction is the one after it (and a single step that was
    /// asked for is done).
    Access(Access),
    /// Triple fault. KVM may have reset the vCPU's registers already.
    Shutdown,
    /// The guest asked for a reset by a port.
    Reset {
        /// Which port.
        port: u16,
    },
    /// KVM could not go on.
    InternalError {
        /// KVM's kind of error; 1: an instruction that its emulator does not know.
        suberror: u32,
        /// KVM's details; their meaning depends on the kind.
        details: Vec<u64>,
        /// The address of the instruction, as far as registers tell.
        pc: u64,
        /// The instruction's bytes, as far as they are known.
        code: Vec<u8>,
    },
    /// The CPU refused to enter the guest: its state is invalid.
    FailEntry {
        /// The CPU's reason.
        reason: u64,
        /// The host CPU it happened on.
        cpu: u32,
    },
    /// A shutdown, reset or crash that the guest told KVM about.
    SystemEvent {
        /// KVM's kind of event.
        kind: u32,
        /// Details.
        data: Vec<u64>,
    },
    /// `hlt` where KVM does not wait for an interrupt itself.
    Halted,
    /// Something this VMM does not know.
    Unhandled {
        /// What it was.
        exit: String,
    },
    /// The vCPU's thread is gone; the vCPU cannot be used any more.
    ThreadDied {
        /// Why, where it is known.
        reason: String,
    },
}

/// How the guest leaves KVM for something that this VMM answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// It reads a port that KVM does not answer itself.
    In,
    /// It writes one, other than a doorbell.
    Out,
    /// It reads physical memory that is none, and no device of KVM's.
    MmioRead,
    /// It writes some.
    MmioWrite,
    /// It reads a synthetic counter's MSR.
    Rdmsr,
    /// It writes one.
    Wrmsr,
    /// It reads a synthetic counter.
    Rdpmc,
}

/// One of the guest's accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// How.
    pub kind: AccessKind,
    /// Port, physical address, MSR or counter.
    pub number: u64,
}

/// Accesses to watch for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// How.
    pub kind: AccessKind,
    /// Only of this one.
    pub number: Option<u64>,
}

impl Watched {
    pub(crate) fn covers(&self, access: Access) -> bool {
        self.kind == access.kind && self.number.is_none_or(|number| number == access.number)
    }
}

/// What one `KVM_RUN` came to.
#[derive(Debug)]
pub(crate) enum Exit {
    /// Answered: run on.
    Again(Access),
    /// A signal, or the request to return: see whether the vCPU is to stop.
    Interrupted,
    /// A debug exception, ours or the guest's.
    Debug(kvm_debug_exit_arch),
    /// A write to a doorbell port, which KVM has yet to complete.
    Doorbell(Stop),
    /// A write to the port of planted traps, which KVM has yet to complete.
    Trap,
    /// A reason to stop.
    Stop(Stop),
}

/// Runs the vCPU until it leaves the guest, and serves the devices and the counters.
pub(crate) fn run_once(fd: &mut VcpuFd, ports: &Ports, counters: Option<&mut Counters>) -> Exit {
    let exit = match fd.run() {
        Ok(exit) => exit,
        // EAGAIN: a vCPU that waits for its start-up signal was woken.
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
            return Exit::Interrupted;
        }
        Err(error) => return unhandled(format!("KVM_RUN failed: {error}")),
    };
    match exit {
        VcpuExit::IoOut(TRAP_PORT, _) => Exit::Trap,
        VcpuExit::IoOut(RDPMC_PORT, _) if counters.is_some() => read_counter(fd, counters),
        VcpuExit::X86Rdmsr(exit) => {
            let index = exit.index;
            read_msr(fd, counters, index)
        }
        VcpuExit::X86Wrmsr(exit) => {
            let (index, data) = (exit.index, exit.data);
            write_msr(fd, counters, index, data)
        }
        VcpuExit::IoOut(port, data) => {
            // The borrow of the data ends before its size is read from the shared page.
            let data = data.to_vec();
            let size = io_size(fd);
            written(ports, port, size, &data)
        }
        VcpuExit::IoIn(port, data) => {
            ports.read(port, data);
            answered(AccessKind::In, port)
        }
        VcpuExit::MmioRead(address, data) => {
            data.fill(0xff);
            answered(AccessKind::MmioRead, address)
        }
        VcpuExit::MmioWrite(address, _) => answered(AccessKind::MmioWrite, address),
        VcpuExit::Intr | VcpuExit::IrqWindowOpen => Exit::Interrupted,
        VcpuExit::Debug(debug) => Exit::Debug(debug),
        VcpuExit::Shutdown => Exit::Stop(Stop::Shutdown),
        VcpuExit::Hlt => Exit::Stop(Stop::Halted),
        VcpuExit::FailEntry(reason, cpu) => Exit::Stop(Stop::FailEntry { reason, cpu }),
        VcpuExit::SystemEvent(kind, data) => {
            let data = data.to_vec();
            Exit::Stop(Stop::SystemEvent { kind, data })
        }
        VcpuExit::InternalError => Exit::Stop(internal_error(fd)),
        other => {
            let exit = format!("{other:?}");
            unhandled(exit)
        }
    }
}

/// The guest executed what stands for `RDPMC`: the counter that ECX names goes into EDX:EAX. KVM
/// completes the `out` when the vCPU is next run, and leaves these registers alone.
fn read_counter(fd: &mut VcpuFd, counters: Option<&mut Counters>) -> Exit {
    let read = || {
        let mut regs = fd.get_regs()?;
        let [a, b, c, d, ..] = regs.rcx.to_le_bytes();
        let ecx = u32::from_le_bytes([a, b, c, d]);
        let value = counters.and_then(|it| Some(it.rdpmc(ecx, msr::tsc(fd).ok()?)));
        let Some(Some(value)) = value else {
            return Ok(unhandled(format!("RDPMC of counter {ecx:#x}")));
        };
        regs.rax = value & 0xffff_ffff;
        regs.rdx = value >> 32;
        fd.set_regs(&regs)?;
        Ok(answered(AccessKind::Rdpmc, ecx))
    };
    read().unwrap_or_else(|error: vmm_sys_util::errno::Error| {
        unhandled(format!("RDPMC, and KVM refused its registers: {error}"))
    })
}

/// The guest reads an MSR that KVM was told not to answer for.
fn read_msr(fd: &mut VcpuFd, counters: Option<&mut Counters>, index: u32) -> Exit {
    let value = counters
        .zip(msr::tsc(fd).ok())
        .and_then(|(counters, tsc)| counters.read_msr(index, tsc));
    match value {
        Some(value) => {
            fd.get_kvm_run().__bindgen_anon_1.msr.data = value;
            fd.get_kvm_run().__bindgen_anon_1.msr.error = 0;
            answered(AccessKind::Rdmsr, index)
        }
        None => unhandled(format!("read of MSR {index:#x}")),
    }
}

/// The guest writes one.
fn write_msr(fd: &mut VcpuFd, counters: Option<&mut Counters>, index: u32, data: u64) -> Exit {
    let written = counters
        .zip(msr::tsc(fd).ok())
        .and_then(|(counters, tsc)| counters.write_msr(index, data, tsc));
    match written {
        Some(()) => {
            fd.get_kvm_run().__bindgen_anon_1.msr.error = 0;
            answered(AccessKind::Wrmsr, index)
        }
        None => unhandled(format!("write of {data:#x} to MSR {index:#x}")),
    }
}

fn answered(kind: AccessKind, number: impl Into<u64>) -> Exit {
    let number = number.into();
    Exit::Again(Access { kind, number })
}

fn unhandled(exit: String) -> Exit {
    Exit::Stop(Stop::Unhandled { exit })
}

/// Bytes of one item of the port access that just made `KVM_RUN` return.
fn io_size(fd: &mut VcpuFd) -> u8 {
    // SAFETY: KVM fills this member of the union for KVM_EXIT_IO, which is the exit the
    // caller has just matched; any bytes are a valid value of it.
    unsafe { fd.get_kvm_run().__bindgen_anon_1.io }.size
}

fn written(ports: &Ports, port: u16, size: u8, data: &[u8]) -> Exit {
    match ports.write(port, size, data) {
        Written::Done => answered(AccessKind::Out, port),
        Written::Reset => Exit::Stop(Stop::Reset { port }),
        Written::Doorbell => match data.len() == usize::from(size) {
            true => {
                let value = data
                    .iter()
                    .rev()
                    .fold(0, |value, byte| value << 8 | u32::from(*byte));
                Exit::Doorbell(Stop::Port { port, size, value })
            }
            false => unhandled(format!("string output to doorbell port {port:#x}")),
        },
    }
}

/// Reads KVM's own description of the error from the vCPU's shared page.
fn internal_error(fd: &mut VcpuFd) -> Stop {
    // SAFETY: KVM fills this member of the union for KVM_EXIT_INTERNAL_ERROR, which is the
    // exit the caller has just matched; any bytes are a valid value of it.
    let internal = unsafe { fd.get_kvm_run().__bindgen_anon_1.internal };
    let count = usize::try_from(internal.ndata).unwrap_or(usize::MAX);
    let details: Vec<u64> = internal.data.iter().take(count).copied().collect();
    let code = match internal.suberror {
        KVM_INTERNAL_ERROR_EMULATION => instruction_bytes(&details),
        _ => Vec::new(),
    };
    Stop::InternalError {
        suberror: internal.suberror,
        details,
        pc: 0,
        code,
    }
}

/// The instruction KVM's emulator gave up on: flags in the first word say whether the next
/// two hold a length byte and up to 15 bytes (Documentation/virt/kvm/api.rst, 5.).
fn instruction_bytes(details: &[u64]) -> Vec<u8> {
    let flag = u64::from(KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES);
    let [flags, words @ ..] = details else {
        return Vec::new();
    };
    if flags & flag == 0 {
        return Vec::new();
    }
    let bytes: Vec<u8> = words
        .iter()
        .take(2)
        .flat_map(|word| word.to_le_bytes())
        .collect();
    match bytes.split_first() {
        Some((len, code)) => code.iter().take(usize::from(*len)).copied().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_bytes_are_taken_as_kvm_lays_them_out() {
        let first = u64::from_le_bytes([3, 0x48, 0x0f, 0xc7, 9, 9, 9, 9]);
        assert_eq!(instruction_bytes(&[1, first, 0]), [0x48, 0x0f, 0xc7]);
        assert!(instruction_bytes(&[0, first, 0]).is_empty(), "flag not set");
        assert!(instruction_bytes(&[]).is_empty());
        assert!(instruction_bytes(&[1]).is_empty());
        let long = u64::from_le_bytes([255, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(instruction_bytes(&[1, long, u64::MAX]).len(), 15);
    }
}
