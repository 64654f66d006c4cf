//! One `KVM_RUN`: serves the devices and counters, and turns KVM's exit into ours.

use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION, KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES,
    kvm_debug_exit_arch,
};
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::stop::{Access, AccessKind, Stop};
use crate::devices::ports::{
    Ports, RDPMC_PORT, RETURN_PORT, SYSENTER_PORT, TRAP_PORT, WriteEffect,
};
use crate::kvm::msr;
use crate::pmu::{Counters, Written};

/// Result of one `KVM_RUN`.
#[derive(Debug)]
pub(crate) enum Exit {
    /// An access that was answered: the vCPU can run on.
    Answered(Access),
    /// A signal, or the request to return: the vCPU may have to stop.
    Interrupted,
    /// A debug exception, ours or the guest's.
    Debug(kvm_debug_exit_arch),
    /// A write to a doorbell port, which KVM has yet to complete.
    Doorbell(Stop),
    /// A write to the port of planted traps, which KVM has yet to complete.
    Trap,
    /// A write to the port of replaced returns, which KVM has yet to complete.
    Return,
    /// A write to the port of the replaced instruction behind `sysenter`, which KVM has yet to
    /// complete.
    Sysenter,
    /// Any other reason to stop.
    Stop(Stop),
}

/// Runs the vCPU until it leaves the guest, and answers an access to a device or counter.
pub(crate) fn run_once(fd: &mut VcpuFd, ports: &Ports, counters: Option<&mut Counters>) -> Exit {
    let exit = match fd.run() {
        Ok(exit) => exit,
        // EAGAIN: a vCPU that waits for its start-up IPI was woken.
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
            return Exit::Interrupted;
        }
        Err(error) => return unhandled(format!("KVM_RUN failed: {error}")),
    };
    match exit {
        VcpuExit::IoOut(TRAP_PORT, _) => Exit::Trap,
        VcpuExit::IoOut(RETURN_PORT, _) => Exit::Return,
        VcpuExit::IoOut(SYSENTER_PORT, _) => Exit::Sysenter,
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
            // Copied, because reading the size borrows the shared page too.
            let data = data.to_vec();
            let size = io_size(fd);
            write_port(ports, port, size, &data)
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

/// The guest executed the `out` that replaces `RDPMC`: returns the counter that ECX names in
/// EDX:EAX. KVM completes the `out` when the vCPU next runs, and does not change these registers.
fn read_counter(fd: &mut VcpuFd, counters: Option<&mut Counters>) -> Exit {
    let read = || {
        let mut regs = fd.get_regs()?;
        let [a, b, c, d, ..] = regs.rcx.to_le_bytes();
        let ecx = u32::from_le_bytes([a, b, c, d]);
        let value = counters.and_then(|it| Some(it.rdpmc(ecx, msr::tsc(fd).ok()?)));
        let Some(Some(value)) = value else {
            return Ok(bad_access(format!("RDPMC of counter {ecx:#x}")));
        };
        regs.rax = value & 0xffff_ffff;
        regs.rdx = value >> 32;
        fd.set_regs(&regs)?;
        Ok(answered(AccessKind::Rdpmc, ecx))
    };
    read().unwrap_or_else(|error: vmm_sys_util::errno::Error| {
        unhandled(format!("RDPMC: failed to access the registers: {error}"))
    })
}

/// The guest reads an MSR that KVM forwards.
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
        None => bad_access(format!("read of MSR {index:#x}")),
    }
}

/// The guest writes an MSR that KVM forwards.
fn write_msr(fd: &mut VcpuFd, counters: Option<&mut Counters>, index: u32, data: u64) -> Exit {
    let written = counters
        .zip(msr::tsc(fd).ok())
        .and_then(|(counters, tsc)| counters.write_msr(index, data, tsc));
    match written {
        Some(written) => {
            // KVM turns an error into #GP.
            let error = u8::from(written == Written::Fault);
            fd.get_kvm_run().__bindgen_anon_1.msr.error = error;
            answered(AccessKind::Wrmsr, index)
        }
        None => bad_access(format!("write of {data:#x} to MSR {index:#x}")),
    }
}

fn answered(kind: AccessKind, number: impl Into<u64>) -> Exit {
    let number = number.into();
    Exit::Answered(Access { kind, number })
}

fn unhandled(exit: String) -> Exit {
    Exit::Stop(Stop::Unhandled { exit })
}

fn bad_access(what: String) -> Exit {
    Exit::Stop(Stop::BadAccess { what })
}

/// Bytes of one item of the port access that made `KVM_RUN` return.
fn io_size(fd: &mut VcpuFd) -> u8 {
    // SAFETY: KVM fills this member of the union for KVM_EXIT_IO, which is the exit the
    // caller has just matched; any bytes are a valid value of it.
    unsafe { fd.get_kvm_run().__bindgen_anon_1.io }.size
}

/// The guest writes a port.
fn write_port(ports: &Ports, port: u16, size: u8, data: &[u8]) -> Exit {
    match ports.write(port, size, data) {
        WriteEffect::Done => answered(AccessKind::Out, port),
        WriteEffect::Reset => Exit::Stop(Stop::Reset { port }),
        WriteEffect::Doorbell => match data.len() == usize::from(size) {
            true => {
                let value = data
                    .iter()
                    .rev()
                    .fold(0, |value, byte| value << 8 | u32::from(*byte));
                Exit::Doorbell(Stop::Port { port, size, value })
            }
            false => bad_access(format!("string output to doorbell port {port:#x}")),
        },
    }
}

/// Reads KVM's description of the error from the vCPU's shared page.
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

/// The instruction that KVM's emulator does not know: a flag in the first word says whether the
/// next two hold a length byte and up to 15 bytes (Documentation/virt/kvm/api.rst, 5.).
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
