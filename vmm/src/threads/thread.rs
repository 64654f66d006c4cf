//! The thread of a vCPU, and its messages.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use vmm_sys_util::signal::unblock_signal;

use super::filter;
use crate::devices::ports::Ports;
use crate::vcpu::kick::kick_signal;
use crate::vcpu::{Run, Stop, Vcpu, run_until_stop};

/// To the thread: the vCPU, and how far to run it. The thread ends when the channel closes.
pub(crate) struct Command {
    pub(crate) vcpu: Box<Vcpu>,
    pub(crate) run: Run,
}

/// From the thread to the controller.
pub(crate) enum Notice {
    /// The vCPU stopped. The controller owns it again.
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
        // This fails only if the machine is gone too.
        let _ = notices.send(Notice::Died {
            vcpu: index,
            reason,
        });
    }
}

fn serve(commands: &Receiver<Command>, notices: &Sender<Notice>, ports: &Ports) {
    // The caller's signal mask, which the thread inherits, may block the kick.
    if let Err(error) = unblock_signal(kick_signal()) {
        tracing::error!("failed to unblock the kick signal: {error:?}");
        return;
    }
    if let Err(error) = filter::restrict() {
        // The system has no seccomp; who starts the process says so.
        tracing::debug!("a vCPU's thread may make any system call: {error}");
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
