//! The thread of a vCPU, and the messages it talks by.

use std::any::Any;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use kvm_bindings::kvm_debug_exit_arch;
use vmm_sys_util::signal::unblock_signal;

use crate::debug::{self, Cause, pass_breakpoint};
use crate::devices::ports::Ports;
use crate::exit::{Exit, Stop, run_once};
use crate::kick::kick_signal;
use crate::step::{self, Way};
use crate::traps;
use crate::vcpu::{InspectError, Vcpu};

/// How a vCPU is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Until it stops for a reason of its own, or is paused.
    Continue,
    /// One instruction, with interrupts and NMIs held back; one that waits goes on waiting.
    /// An instruction that faults is done when its handler has returned to it (as is `int`).
    Step,
    /// That many of them; it stops before where it meets a breakpoint, or for another reason.
    Steps(NonZeroU32),
    /// Until it comes to this instruction, with interrupts and NMIs held back. No breakpoint is met on
    /// the way.
    To(u64),
}

impl Run {
    /// How many instructions, where that is limited.
    fn steps(self) -> u32 {
        match self {
            Self::Continue => 0,
            Self::Step | Self::To(_) => 1,
            Self::Steps(count) => count.get(),
        }
    }
}

/// To the thread: the vCPU, and how it is to go on. The thread ends when no more can come.
pub(crate) struct Command {
    pub(crate) vcpu: Box<Vcpu>,
    pub(crate) run: Run,
}

/// From the thread.
pub(crate) enum Notice {
    /// The vCPU stopped, and is handed back.
    Stopped { vcpu: Box<Vcpu>, stop: Stop },
    /// The thread panicked, and took the vCPU with it.
    Died { vcpu: u8, reason: String },
}

/// The thread's main function.
pub(crate) fn main(
    index: u8,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    ports: Arc<Ports>,
) {
    let serve = AssertUnwindSafe(|| serve(&commands, &notices, &ports));
    if let Err(panic) = catch_unwind(serve) {
        let reason = panic_text(panic.as_ref());
        // Where the machine is gone too, there is nobody left to tell.
        let _ = notices.send(Notice::Died {
            vcpu: index,
            reason,
        });
    }
}

fn serve(commands: &Receiver<Command>, notices: &Sender<Notice>, ports: &Ports) {
    // A mask inherited from the caller must not keep the kick out.
    if let Err(error) = unblock_signal(kick_signal()) {
        tracing::error!("failed to unblock the kick signal: {error:?}");
        return;
    }
    for Command { mut vcpu, run } in commands {
        let stop = run_until_stop(&mut vcpu, run, ports);
        if notices.send(Notice::Stopped { vcpu, stop }).is_err() {
            return;
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "panic without a message".to_owned(),
    }
}

/// Runs the vCPU on this thread.
pub(crate) fn run_until_stop(vcpu: &mut Vcpu, run: Run, ports: &Ports) -> Stop {
    let mut steps = run.steps();
    loop {
        if let Err(error) = prepare(vcpu, run) {
            return Stop::Unhandled {
                exit: format!("failed to set up breakpoints and steps: {error}"),
            };
        }
        let stop = run_as_set_up(vcpu, ports);
        steps = steps.saturating_sub(1);
        match stop {
            // Between two steps a request to pause is not to be missed.
            Stop::Stepped { .. } if steps > 0 && vcpu.is_to_stop() => return Stop::Paused,
            Stop::Stepped { .. } if steps > 0 => {}
            stop => return stop,
        }
    }
}

fn run_as_set_up(vcpu: &mut Vcpu, ports: &Ports) -> Stop {
    loop {
        match run_once(&mut vcpu.fd, ports, vcpu.counters.as_mut()) {
            Exit::Again(access) if vcpu.watched.iter().any(|it| it.covers(access)) => {
                return complete_output(vcpu, ports).unwrap_or(Stop::Access(access));
            }
            Exit::Again(_) => {}
            Exit::Interrupted if vcpu.is_to_stop() => return Stop::Paused,
            Exit::Interrupted => {}
            Exit::Debug(debug) => match on_debug(vcpu, &debug) {
                Some(stop) => return stop,
                None => continue,
            },
            Exit::Doorbell(stop) => return complete_output(vcpu, ports).unwrap_or(stop),
            Exit::Trap => match traps::stopped_at(vcpu, |vcpu| complete_output(vcpu, ports)) {
                Ok(Some(stop)) => return stop,
                // The guest's own output, to a port where nobody is.
                Ok(None) => {}
                Err(error) => {
                    return Stop::Unhandled {
                        exit: format!("a planted trap, and KVM refused its registers: {error}"),
                    };
                }
            },
            Exit::Stop(stop) => return with_code(vcpu, stop),
        }
    }
}

fn prepare(vcpu: &mut Vcpu, run: Run) -> Result<(), InspectError> {
    let way = match run {
        Run::Continue => None,
        Run::Step | Run::Steps(_) => Some(step::plan(vcpu)?),
        Run::To(address) => Some(Way::Landing(address)),
    };
    vcpu.wanted.set_step(way);
    let refused = |source| InspectError::Kvm {
        vcpu: vcpu.index,
        what: "set the debug state",
        source,
    };
    if std::mem::take(&mut vcpu.at_breakpoint) {
        pass_breakpoint(&vcpu.fd).map_err(refused)?;
    }
    vcpu.armed.arm(&vcpu.fd, vcpu.wanted).map_err(refused)
}

/// Takes a debug exception; gives a reason to stop, or none where the vCPU is to go on.
fn on_debug(vcpu: &mut Vcpu, debug: &kvm_debug_exit_arch) -> Option<Stop> {
    let handled = match vcpu.wanted.cause(debug) {
        Cause::Ours(stop) => {
            vcpu.at_breakpoint = matches!(stop, Stop::Breakpoint { .. });
            match debug::tell_of_step(vcpu, debug) {
                Ok(()) => return Some(stepped(vcpu, stop)),
                Err(error) => Err(error),
            }
        }
        Cause::Guests => debug::give_to_guest(vcpu, debug),
    };
    let failed = "failed to hand a debug exception back to the guest";
    handled.err().map(|error| Stop::Unhandled {
        exit: format!("{failed}: {error}"),
    })
}

/// Tidies up after a step.
fn stepped(vcpu: &Vcpu, stop: Stop) -> Stop {
    match (&stop, vcpu.wanted.step()) {
        (Stop::Stepped { .. }, Some(Way::TrapOnStack)) => {
            match step::clear_pushed_trap_flag(vcpu) {
                Ok(()) => stop,
                Err(error) => Stop::Unhandled {
                    exit: format!("failed to clear a pushed trap flag: {error}"),
                },
            }
        }
        _ => stop,
    }
}

/// KVM completes an access only when the vCPU is next run: until then the instruction pointer
/// is still on it. With the request to return set, `KVM_RUN` does that and nothing else.
fn complete_output(vcpu: &mut Vcpu, ports: &Ports) -> Option<Stop> {
    vcpu.run_page.request();
    loop {
        match run_once(&mut vcpu.fd, ports, vcpu.counters.as_mut()) {
            // Where it was single-stepped, KVM reports the step here; both are done.
            Exit::Interrupted | Exit::Debug(_) => return None,
            // An access that KVM takes apart: the next part.
            Exit::Again(_) => {}
            Exit::Stop(stop) => return Some(stop),
            other => {
                return Some(Stop::Unhandled {
                    exit: format!("{other:?} while completing an access"),
                });
            }
        }
    }
}

/// Adds to an internal error where it happened, and the code there unless KVM told it.
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
        let mut bytes = [0; 15];
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
