//! One order to a KVM host outside of this process: it is sent, then its answers are taken until the last.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitStatus;

use unwindlab_oracle::trace::Recording;

use super::channel::{ChannelError, FromHost};
use crate::host::progress_line;
use crate::plan::{InfraError, Progress};
use crate::qmp::QmpError;

/// What an answer means for its order: more follow, or this was the last.
pub type Answer<T> = ControlFlow<Result<T, HostError>>;

/// Why an order has no last answer.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Its process does not start.
    #[error("cannot start {what}: {source}")]
    Start {
        /// What it is.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Its process cannot be watched.
    #[error("cannot watch the KVM host: {0}")]
    Watch(#[source] io::Error),
    /// It ended.
    #[error("the KVM host died ({0})")]
    Died(ExitStatus),
    /// No first message came.
    #[error("the KVM host did not come up: {0}")]
    Boot(#[source] ChannelError),
    /// The order did not get through.
    #[error(transparent)]
    Send(ChannelError),
    /// An answer did not get through.
    #[error("the KVM host died or hangs: {0}")]
    Lost(#[source] ChannelError),
    /// It has no KVM that can run guests, for this reason.
    #[error("{0}")]
    Unfit(String),
    /// The first message comes from another version.
    #[error("the KVM host is not this program")]
    OtherProgram,
    /// The answer belongs to no order.
    #[error("the KVM host started over")]
    StartedOver,
    /// The image of the kernel under test cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    ReadKernel {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its clock is not that of this machine.
    #[error("the outer machine's clock runs {times:.2} times as fast as it should")]
    Clock {
        /// How many times.
        times: f64,
    },
    /// It takes its timers for others than they are.
    #[error("the outer kernel takes its timers for {times:.2} times as fast as they are")]
    Timers {
        /// How many times.
        times: f64,
    },
    /// It was stopped, to be saved, and does not go on.
    #[error("the outer machine was saved and does not go on: {0}")]
    Monitor(#[source] QmpError),
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
}

impl HostError {
    /// With everything that it printed.
    pub fn with_console(&self, console: String) -> InfraError {
        InfraError {
            reason: self.to_string(),
            console,
        }
    }
}

/// Receives answers and hands them on until the last.
///
/// # Errors
/// What `receive` fails with, or the last answer.
pub fn until_last<T>(
    mut receive: impl FnMut() -> Result<FromHost, HostError>,
    mut take: impl FnMut(FromHost) -> Answer<T>,
) -> Result<T, HostError> {
    loop {
        if let ControlFlow::Break(last) = take(receive()?) {
            return last;
        }
    }
}

/// Takes an answer to the order to run a trial: progress is shown, the recording is the last.
pub fn trial_answer(
    message: FromHost,
    scenario: &str,
    progress: &dyn Progress,
) -> Answer<Recording> {
    match message {
        FromHost::Progress(trial) => {
            progress.step(&progress_line(scenario, &trial));
            ControlFlow::Continue(())
        }
        FromHost::Recording(recording) => ControlFlow::Break(Ok(*recording)),
        other => out_of_turn(other),
    }
}

/// An answer that does not belong to the order.
pub fn out_of_turn<T>(message: FromHost) -> Answer<T> {
    ControlFlow::Break(Err(match message {
        FromHost::Unfit { reason } => HostError::Unfit(reason),
        _ => HostError::StartedOver,
    }))
}

#[cfg(test)]
mod tests {
    use unwindlab_guest_kernel::Silent;

    use super::*;
    use crate::plan::{Stage, TrialProgress};

    /// What comes of a trial that is answered with these messages.
    fn trial(messages: Vec<FromHost>) -> Result<Recording, HostError> {
        let mut messages = messages.into_iter();
        let closed = || HostError::Lost(ChannelError::Closed);
        until_last(
            || messages.next().ok_or_else(closed),
            |message| trial_answer(message, "x", &Silent),
        )
    }

    fn progress() -> FromHost {
        FromHost::Progress(TrialProgress {
            stage: Stage::Booting,
            elapsed_ms: 1,
            injected: 0,
            planned: 2,
        })
    }

    #[test]
    fn a_trial_ends_with_its_recording() {
        let recording = FromHost::Recording(Box::new(Recording {
            console: "hello".to_owned(),
            ..Recording::default()
        }));
        let unfit = FromHost::Unfit {
            reason: "not received".to_owned(),
        };
        let answered = trial(vec![progress(), recording, unfit]).unwrap();
        assert_eq!(answered.console, "hello");
    }

    #[test]
    fn without_a_recording_the_reason_is_given() {
        let reason = |messages| trial(messages).unwrap_err().to_string();
        let unfit = FromHost::Unfit {
            reason: "no KVM".to_owned(),
        };
        assert_eq!(reason(vec![progress(), unfit]), "no KVM");
        let hello = FromHost::Hello {
            version: String::new(),
            release: String::new(),
        };
        assert_eq!(reason(vec![hello]), "the KVM host started over");
        assert_eq!(
            reason(vec![progress()]),
            "the KVM host died or hangs: the channel to the KVM host closed"
        );
    }
}
