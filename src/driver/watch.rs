//! Looking at a machine from outside: where its vCPUs stand, which task is current, whether it
//! panicked, hangs, or is merely slow.

use std::time::Duration;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use unwindlab_vmm::{InspectError, Machine, Stop, VcpuHandle};

use super::session::Session;
use super::vcpu::{VcpuError, vcpu, while_stopped, word};
use crate::plan::KernelAddresses;
use unwindlab_oracle::trace::recording::{TrialEnd, VcpuPlace};

/// `MSR_KERNEL_GS_BASE`: the kernel's GS base while user mode runs (AMD APM vol. 2, SWAPGS).
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;
/// The smallest page.
const PAGE: u64 = 4096;
/// What the console says when a kernel is beyond help.
const PANIC_LINES: [&str; 2] = ["Kernel panic - not syncing", "Oops: "];
/// How long a trial that ran out of time is watched for progress: longer than any timer tick.
const WATCH: Duration = Duration::from_millis(500);

/// Where a stopped vCPU stands: next instruction and privilege level.
pub fn place(vcpu: &VcpuHandle<'_>) -> Result<(u64, u8), InspectError> {
    let rip = vcpu.regs()?.rip;
    // SS.DPL is the CPL (AMD APM vol. 2, 4.9.1).
    Ok((rip, vcpu.sregs()?.ss.dpl))
}

/// The GS base with which the kernel runs on a vCPU that is stopped; 0 where it has none yet.
pub fn kernel_gs_base(machine: &mut Machine, index: u8) -> Result<u64, VcpuError> {
    let handle = vcpu(machine, index)?;
    let gs = handle.sregs()?.gs.base;
    // A kernel address is in the upper half. In the first instructions of an entry GS is still
    // the user's, as in user mode.
    if gs >> 63 == 1 {
        return Ok(gs);
    }
    Ok(handle.msr(MSR_KERNEL_GS_BASE)?)
}

/// The `task_struct` that is current on a stopped vCPU, by the kernel's per-CPU `current_task`.
/// 0 where the kernel has no GS base yet.
pub fn current_task(
    machine: &mut Machine,
    index: u8,
    symbols: &KernelAddresses,
) -> Result<u64, VcpuError> {
    let base = kernel_gs_base(machine, index)?;
    if base == 0 {
        return Ok(0);
    }
    let handle = vcpu(machine, index)?;
    word(&handle, base.wrapping_add(symbols.current_task))
}

/// Where the instruction at `pc` can lead to: one place, two for a conditional branch, none for
/// a return or an indirect branch, and none where there is no instruction.
pub fn successors(machine: &mut Machine, index: u8, pc: u64) -> Result<Vec<u64>, VcpuError> {
    /// The longest x86 instruction.
    const LONGEST: usize = 15;
    let handle = vcpu(machine, index)?;
    let mut code = [0; LONGEST];
    // The instruction may end right before an unmapped page.
    let in_page = usize::try_from(PAGE - pc % PAGE).unwrap_or(usize::MAX);
    if handle.read_virt(pc, &mut code).is_err() {
        handle.read_virt(pc, code.get_mut(..in_page).unwrap_or_default())?;
    }
    let instruction = Decoder::with_ip(64, &code, pc, DecoderOptions::NONE).decode();
    Ok(match instruction.flow_control() {
        FlowControl::Next => vec![instruction.next_ip()],
        FlowControl::UnconditionalBranch | FlowControl::Call => {
            vec![instruction.near_branch_target()]
        }
        FlowControl::ConditionalBranch => {
            vec![instruction.next_ip(), instruction.near_branch_target()]
        }
        _ => Vec::new(),
    })
}

/// Where all vCPUs stand. Stops each for the moment of looking.
pub fn places(machine: &mut Machine) -> Result<Vec<VcpuPlace>, VcpuError> {
    (0..machine.vcpu_count())
        .map(|index| {
            let (rip, cpl) = while_stopped(machine, index, |handle| Ok(place(handle)?))?;
            Ok(VcpuPlace {
                vcpu: u32::from(index),
                rip,
                cpl,
            })
        })
        .collect()
}

/// The console, lossily decoded.
#[must_use]
pub fn console_text(machine: &Machine) -> String {
    String::from_utf8_lossy(&machine.console().snapshot()).replace('\r', "")
}

/// How a triple fault is told of which nothing on the console explains.
const TRIPLE_FAULT: &str = "triple fault or reset";

/// The KVM host's failure, where an end may as well be that: a triple fault without a word, on a KVM in TCG.
/// Seen there in guests that go the same way without one the next time. KVM resets the vCPU before
/// anybody can look where it stood.
#[must_use]
pub fn host_may_have(end: &TrialEnd) -> Option<TrialEnd> {
    match end {
        TrialEnd::Panic { line } if line.starts_with(TRIPLE_FAULT) && unwindlab_vmm::on_tcg() => {
            Some(TrialEnd::Infra {
                reason: format!(
                    "{line}: the emulated KVM host's doing, most likely; run it again: what comes \
                     again is the kernel's"
                ),
            })
        }
        _ => None,
    }
}

/// The end that a stop means which is neither ours nor the agent's.
pub fn ended_by(machine: &mut Machine, index: u8, stop: &Stop) -> Result<TrialEnd, VcpuError> {
    Ok(match stop {
        // A panic with panic=-1 reboots by triple fault; the console knows the reason.
        Stop::Shutdown | Stop::Reset { .. } | Stop::SystemEvent { .. } => {
            match (panicked(machine), lost(machine)?) {
                (Some(end), _) | (None, Some(end)) => end,
                (None, None) => TrialEnd::Panic {
                    line: format!("{TRIPLE_FAULT} on vCPU {index}, nothing on the console"),
                },
            }
        }
        other => TrialEnd::Infra {
            reason: format!("vCPU {index} stopped: {other:?}"),
        },
    })
}

/// The end that the console tells of, if it tells of one.
#[must_use]
pub fn panicked(machine: &Machine) -> Option<TrialEnd> {
    let text = console_text(machine);
    // The whole line must be there, and what follows it is what one wants to read.
    let (lines, _partial) = text.rsplit_once('\n')?;
    let line = lines
        .lines()
        .find(|l| PANIC_LINES.iter().any(|p| l.contains(p)))?;
    Some(TrialEnd::Panic {
        line: line.trim().to_owned(),
    })
}

/// The end of a trial in which the KVM host lost a vCPU: its page tables are not in the guest's RAM.
/// QEMU's TCG now and then leaves the state of the outer kernel in the guest's control block, seen
/// with 10.0.13: CR3, stack pointer and instruction pointer (in the code that enters the guest) are the
/// outer ones, and the vCPU faults for ever. Elsewhere nothing is known of such a thing, and it is the guest's.
pub fn lost(machine: &mut Machine) -> Result<Option<TrialEnd>, VcpuError> {
    if !unwindlab_vmm::on_tcg() {
        return Ok(None);
    }
    for index in 0..machine.vcpu_count() {
        let (rip, cr3) = while_stopped(machine, index, |handle| {
            Ok((handle.regs()?.rip, handle.sregs()?.cr3))
        })?;
        let tables = cr3 & !(PAGE - 1);
        if machine.memory().read(tables, &mut [0]).is_err() {
            return Ok(Some(TrialEnd::Infra {
                reason: format!(
                    "the emulated KVM host lost vCPU {index}: its page tables are at {tables:#x}, where \
                     the guest has no RAM, and it stands at {rip:#x}"
                ),
            }));
        }
    }
    Ok(None)
}

/// The guest never said Ready.
pub fn no_boot(machine: &Machine, limit: Duration, places: &[VcpuPlace]) -> TrialEnd {
    let last = console_text(machine);
    let last = last
        .trim_end()
        .lines()
        .next_back()
        .unwrap_or("nothing on the console");
    TrialEnd::BootError {
        reason: format!("no agent after {} s; last line: {last}", limit.as_secs()),
        places: places.to_vec(),
    }
}

/// The time is over: a hang when neither user mode nor the console moves any more, otherwise a
/// guest that is too slow for its limit.
pub fn out_of_time(machine: &mut Machine, session: &Session) -> Result<TrialEnd, VcpuError> {
    let look = |machine: &Machine| (session.progress(machine.memory()), machine.console().len());
    let before = look(machine);
    std::thread::sleep(WATCH);
    if look(machine) != before {
        return Ok(TrialEnd::Timeout);
    }
    if let Some(end) = lost(machine)? {
        return Ok(end);
    }
    Ok(TrialEnd::Hang {
        places: places(machine)?,
    })
}
