//! Runs a vCPU on the current thread until it stops.

use std::fmt::Display;
use std::num::NonZeroU32;

use kvm_bindings::{KVM_VCPUEVENT_VALID_SHADOW, kvm_debug_exit_arch};
use vmm_sys_util::errno;

use super::exit::{Exit, run_once};
use super::step;
use super::{InspectError, Stop, Vcpu};
use crate::debug::{Cause, StepMethod, heed_breakpoint, pass_breakpoint};
use crate::devices::ports::Ports;
use crate::inject;
use crate::kvm::exit_regs::{self, NextRegs};
use crate::returns::Executed;
use crate::sysenter::SysenterEntry;
use crate::x86::LONGEST_INSTRUCTION;

/// How far a resumed vCPU runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Until it stops by itself, or is paused.
    Continue,
    /// One instruction, with interrupts and NMIs held back: pending ones stay pending. An
    /// instruction that faults is done when its handler has returned to it (as is `int`).
    Step,
    /// This many instructions, or until it stops at a breakpoint or for another reason.
    Steps(NonZeroU32),
    /// Until it arrives at this address, with interrupts and NMIs held back. Breakpoints on the
    /// way have no effect.
    To(u64),
    /// As before it was paused: what is left of a step, of steps, or of the way to an address. Behind a
    /// stop for another reason: one more step, or on the way.
    AsBefore,
}

impl Run {
    /// Number of steps; 0 if unlimited.
    fn steps(self) -> u32 {
        match self {
            Self::Continue | Self::AsBefore => 0,
            Self::Step | Self::To(_) => 1,
            Self::Steps(count) => count.get(),
        }
    }
}

/// Runs the vCPU on the current thread.
pub(crate) fn run_until_stop(vcpu: &mut Vcpu, run: Run, ports: &Ports) -> Stop {
    let run = match run {
        Run::AsBefore => vcpu.run,
        run => run,
    };
    vcpu.run = run;
    let mut steps = run.steps();
    loop {
        if let Err(error) = prepare(vcpu, run) {
            return unhandled("failed to set up breakpoints and steps", error);
        }
        let stop = run_as_set_up(vcpu, ports);
        if stop == Stop::Paused {
            return stop;
        }
        steps = steps.saturating_sub(1);
        if let Some(left) = NonZeroU32::new(steps) {
            vcpu.run = Run::Steps(left);
        }
        match stop {
            // A request to pause may arrive between two steps.
            Stop::Stepped { .. } if steps > 0 && vcpu.must_stop() => return Stop::Paused,
            Stop::Stepped { .. } if steps > 0 => {}
            stop => return stop,
        }
    }
}

fn run_as_set_up(vcpu: &mut Vcpu, ports: &Ports) -> Stop {
    loop {
        let exit = run_once(&mut vcpu.fd, ports, vcpu.counters.as_mut());
        if let Err(error) = mend(vcpu, &exit) {
            return unhandled("failed to mend CS behind sysenter", error);
        }
        match exit {
            Exit::Answered(access) if vcpu.watched.iter().any(|it| it.covers(access)) => {
                return complete_output(vcpu, ports).unwrap_or(Stop::Access(access));
            }
            Exit::Answered(_) => {}
            Exit::Interrupted if vcpu.must_stop() => return Stop::Paused,
            Exit::Interrupted => {}
            Exit::Debug(debug) => {
                if let Some(stop) = on_debug(vcpu, &debug) {
                    return stop;
                }
            }
            Exit::Doorbell(stop) => {
                vcpu.passed.clear();
                return complete_output(vcpu, ports).unwrap_or(stop);
            }
            Exit::Trap => match stop_at_trap(vcpu, ports) {
                Ok(Some(stop)) => return stop,
                // The guest's own output, to a port without a device.
                Ok(None) => {}
                Err(error) => {
                    return unhandled("planted trap: failed to access the registers", error);
                }
            },
            Exit::Return => match at_return(vcpu, ports) {
                Ok(Some(stop)) => return stop,
                Ok(None) => {}
                Err(error) => return unhandled("return to user mode", error),
            },
            Exit::Sysenter => match at_sysenter(vcpu, ports) {
                Ok(Some(stop)) => return stop,
                Ok(None) => {}
                Err(error) => return unhandled("instruction behind sysenter", error),
            },
            Exit::Stop(stop) => return with_code(vcpu, stop),
        }
    }
}

/// Mends a vCPU that stands right behind `sysenter`. At the `out` there it is mended with that
/// executed ([`at_sysenter`]).
fn mend(vcpu: &Vcpu, exit: &Exit) -> Result<(), errno::Error> {
    let Some(entry) = vcpu.sysenter else {
        return Ok(());
    };
    let pc = match exit {
        Exit::Debug(debug) => debug.pc,
        Exit::Interrupted => vcpu.fd.get_regs()?.rip,
        _ => return Ok(()),
    };
    match entry.is_at(pc) {
        true => SysenterEntry::mend(&vcpu.fd),
        false => Ok(()),
    }
}

/// The guest executed the `out` in the place of the first instruction behind `sysenter`: executes
/// that. `None` if the vCPU can run on.
fn at_sysenter(vcpu: &mut Vcpu, ports: &Ports) -> Result<Option<Stop>, errno::Error> {
    let Some(entry) = vcpu.sysenter else {
        // The guest's own output, to a port without a device.
        return Ok(None);
    };
    let next = entry.execute(&vcpu.fd)?;
    Ok(next.and_then(|next| executed(vcpu, ports, next)))
}

/// The guest executed an `out` in the place of a return to user mode: executes that. `None` if the
/// vCPU can run on.
fn at_return(vcpu: &mut Vcpu, ports: &Ports) -> Result<Option<Stop>, errno::Error> {
    let Some(returns) = &vcpu.returns else {
        // The guest's own output, to a port without a device.
        return Ok(None);
    };
    let strange = match returns.execute(&vcpu.fd, vcpu.index, &vcpu.memory)? {
        Executed::NotOurs => return Ok(None),
        Executed::To(next) => return Ok(executed(vcpu, ports, next)),
        Executed::No(strange) => strange,
    };
    let regs = vcpu.fd.get_regs()?;
    if let Some(stop) = complete_output(vcpu, ports) {
        return Ok(Some(stop));
    }
    vcpu.fd.set_regs(&regs)?;
    let (pc, why) = (regs.rip, strange.to_string());
    Ok(Some(Stop::StrangeReturn { pc, why }))
}

/// The replaced instruction was executed, and the vCPU is to go on with these registers. KVM has yet to complete the `out`: it skips
/// it only where the instruction pointer is still on it.
fn executed(vcpu: &mut Vcpu, ports: &Ports, mut next: NextRegs) -> Option<Stop> {
    heed_breakpoint(&vcpu.debug.config, &vcpu.passed, &mut next.regs);
    let pc = next.regs.rip;
    // An NMI that comes right at the `iret` of another, where NMIs are unmasked already, returns to the `out`.
    if pc == exit_regs::at_exit(&vcpu.fd).0.rip
        && let Some(stop) = complete_output(vcpu, ports)
    {
        return Some(stop);
    }
    exit_regs::set_at_entry(&mut vcpu.fd, &next);
    match vcpu.debug.config.step {
        // To an address: a breakpoint there says that it has come.
        None | Some(StepMethod::Landing(_)) => None,
        // A vCPU that stops may be put back to the `out`, which KVM would still complete.
        Some(_) => complete_output(vcpu, ports).or(Some(Stop::Stepped { pc })),
    }
}

fn prepare(vcpu: &mut Vcpu, run: Run) -> Result<(), InspectError> {
    let step = match run {
        Run::Continue | Run::AsBefore => None,
        Run::Step | Run::Steps(_) => Some(step::method(vcpu)?),
        Run::To(address) => Some(StepMethod::Landing(address)),
    };
    vcpu.debug.config.step = step;
    let refused = |source| InspectError::Kvm {
        vcpu: vcpu.index,
        what: "set the debug state",
        source,
    };
    if std::mem::take(&mut vcpu.at_breakpoint) {
        pass_breakpoint(&vcpu.fd, &mut vcpu.passed).map_err(refused)?;
    }
    vcpu.debug.arm(&vcpu.fd).map_err(refused)
}

/// Handles a debug exception. `None` if the vCPU can run on.
fn on_debug(vcpu: &mut Vcpu, exit: &kvm_debug_exit_arch) -> Option<Stop> {
    let pc = exit.pc;
    let cause = vcpu.debug.config.cause(exit);
    vcpu.at_breakpoint = cause == Cause::Breakpoint;
    let handed_back = match cause {
        Cause::Step | Cause::Breakpoint | Cause::Data => {
            vcpu.debug.give_guest_its_part(&vcpu.fd, exit)
        }
        Cause::NotOurs => vcpu.debug.give_to_guest(&vcpu.fd, exit),
    };
    if let Err(error) = handed_back {
        let what = "failed to hand a debug exception back to the guest";
        return Some(unhandled(what, error));
    }
    let step = vcpu.debug.config.step;
    match cause {
        // The step may have pushed the flags onto watched data.
        Cause::Data if step == Some(StepMethod::TrapFlagOnStack) => {
            let met = vcpu.debug.config.met_data(exit);
            Some(match step::clear_pushed_trap_flag(vcpu) {
                Ok(()) => Stop::Data { pc, met },
                Err(error) => unhandled("failed to clear a pushed trap flag", error),
            })
        }
        Cause::Step if step == Some(StepMethod::TrapFlagOnStack) => {
            Some(match step::clear_pushed_trap_flag(vcpu) {
                Ok(()) => Stop::Stepped { pc },
                Err(error) => unhandled("failed to clear a pushed trap flag", error),
            })
        }
        Cause::Step => Some(Stop::Stepped { pc }),
        Cause::Breakpoint => Some(Stop::Breakpoint { pc }),
        Cause::Data => Some(Stop::Data {
            pc,
            met: vcpu.debug.config.met_data(exit),
        }),
        Cause::NotOurs => None,
    }
}

fn unhandled(what: &str, error: impl Display) -> Stop {
    let exit = format!("{what}: {error}");
    Stop::Unhandled { exit }
}

/// Completes an access, which KVM does only when the vCPU next runs: until then the instruction
/// pointer is still on it. Held back, `KVM_RUN` does nothing else.
fn complete_output(vcpu: &mut Vcpu, ports: &Ports) -> Option<Stop> {
    vcpu.run_page.hold();
    let stop = completed(vcpu, ports);
    vcpu.run_page.let_go();
    stop
}

fn completed(vcpu: &mut Vcpu, ports: &Ports) -> Option<Stop> {
    loop {
        match run_once(&mut vcpu.fd, ports, vcpu.counters.as_mut()) {
            // KVM reports a single step here; then both are done.
            Exit::Interrupted | Exit::Debug(_) => return None,
            // KVM splits some accesses: the next part.
            Exit::Answered(_) => {}
            Exit::Stop(stop) => return Some(stop),
            other => {
                return Some(Stop::Unhandled {
                    exit: format!("{other:?} while completing an access"),
                });
            }
        }
    }
}

/// The guest executed a trap, and KVM has yet to complete the `out`. Lets KVM complete it, then
/// moves the vCPU back to before the instruction. `None` if no trap of ours is at that address.
fn stop_at_trap(vcpu: &mut Vcpu, ports: &Ports) -> Result<Option<Stop>, errno::Error> {
    let (regs, _) = exit_regs::at_exit(&vcpu.fd);
    if !vcpu.traps.contains(&regs.rip) {
        return Ok(None);
    }
    let shadow = vcpu.fd.get_vcpu_events()?.interrupt.shadow;
    if let Some(stop) = complete_output(vcpu, ports) {
        return Ok(Some(stop));
    }
    vcpu.fd.set_regs(&regs)?;
    // After `sti`: KVM considers the completion the end of the interrupt shadow.
    if shadow != 0 {
        let mut events = vcpu.fd.get_vcpu_events()?;
        events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
        events.interrupt.shadow = shadow;
        inject::keep_nmis(&mut events);
        vcpu.fd.set_vcpu_events(&events)?;
    }
    vcpu.at_breakpoint = true;
    Ok(Some(Stop::Breakpoint { pc: regs.rip }))
}

/// Adds the address to an internal error, and the code there unless KVM reported it.
fn with_code(vcpu: &Vcpu, stop: Stop) -> Stop {
    let Stop::InternalError {
        suberror,
        details,
        mut code,
        ..
    } = stop
    else {
        return stop;
    };
    let pc = vcpu.regs().map_or(0, |regs| regs.rip);
    if code.is_empty() {
        let mut bytes = [0; LONGEST_INSTRUCTION];
        if vcpu.read_virt(pc, &mut bytes).is_ok() {
            code = bytes.to_vec();
        }
    }
    Stop::InternalError {
        suberror,
        details,
        pc,
        code,
    }
}
