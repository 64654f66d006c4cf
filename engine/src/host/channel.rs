//! The one channel between the command and a KVM host outside of its process (the outer machine's init, or the
//! VMM's process here): length-prefixed, postcard-encoded messages over a byte stream (a socket; a virtio port in the
//! outer machine).
//!
//! Frame: little-endian `u32` length of the body, then the body. Both ends are this same binary,
//! so there is no version to negotiate; [`FromHost::Hello`] still carries one because a port
//! may hold leftovers of something else.

use std::io::{Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::timekeeping::Timekeeping;
use crate::plan::measurement::{MeasuredFigures, Measurement, NotMeasured};
use crate::plan::self_test::SelfTestMessage;
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{TrialPlan, TrialProgress};
use unwindlab_oracle::trace::Recording;

/// Longest body accepted: a recording with all its rings, with room to spare.
pub const MAX_BODY: usize = 1 << 30;

/// From the command to the host.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// Run one trial. Answered by any number of `Progress`, then one `Recording`.
    Run(Box<TrialPlan>),
    /// Run one trial, deterministically: the seed decides which vCPU runs when. Answered as `Run`.
    RunInTurns {
        /// What to run.
        plan: Box<TrialPlan>,
        /// Decides the turns.
        seed: u64,
    },
    /// Carry out a sweep. Answered by `Sweep` messages, the last of which is `Done` or `Failed`.
    Sweep(Box<SweepPlan>),
    /// Make one measurement. Answered by `Bench`.
    Bench(Measurement),
    /// Make the VMM's own checks, each within so many milliseconds. Answered by `SelfTest` messages, the last of which is `Done` or
    /// `Failed`.
    SelfTest {
        /// How long a check may take, in the time of the machine it runs on.
        limit_ms: u64,
    },
    /// Take a kernel under test: behind this message come so many bytes of its image. Not answered.
    Kernel {
        /// Its content hash.
        hash: String,
        /// Bytes of its image.
        bytes: u64,
    },
    /// Say whether it is there. Answered by `Idle`.
    Ping,
    /// Give back what memory can be given back, for the host is saved next. Answered by `Idle`.
    Rest,
}

/// From the host to the command.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromHost {
    /// /dev/kvm is there and the machine takes orders. First message.
    Hello {
        /// The crate's version, to refuse anything else.
        version: String,
        /// `uname -r` of the kernel that it runs on.
        release: String,
    },
    /// It cannot be a KVM host. Nothing follows.
    Unfit {
        /// Why, in one line.
        reason: String,
    },
    /// The running trial got somewhere.
    Progress(TrialProgress),
    /// The trial is over.
    Recording(Box<Recording>),
    /// The sweep got somewhere.
    Sweep(Box<Message>),
    /// The measurement, or why it could not be made.
    Bench(Result<MeasuredFigures, NotMeasured>),
    /// The self-test got somewhere.
    SelfTest(SelfTestMessage),
    /// It waits for orders.
    Idle {
        /// Guests that wait for their next trial.
        guests: u32,
        /// What it takes its clocks for.
        timekeeping: Timekeeping,
    },
}

/// Why a message did not get through.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end closed it.
    #[error("the channel to the KVM host closed")]
    Closed,
    /// Nothing came for too long.
    #[error("no word for {0} s")]
    Silent(u64),
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// The stream failed.
    #[error("the channel to the KVM host failed: {0}")]
    Io(#[source] std::io::Error),
    /// Something other than a message arrived, or a message cannot be encoded.
    #[error("the KVM host sent something other than a message ({0})")]
    Garbled(&'static str),
}

/// Writes one message.
///
/// # Errors
/// [`ChannelError`] when the stream fails or the message is larger than [`MAX_BODY`].
pub fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> Result<(), ChannelError> {
    let body = postcard::to_allocvec(message).map_err(|_| ChannelError::Garbled("unencodable"))?;
    let len = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_BODY)
        .ok_or(ChannelError::Garbled("too long"))?;
    stream
        .write_all(&len.to_le_bytes())
        .and_then(|()| stream.write_all(&body))
        .and_then(|()| stream.flush())
        .map_err(ChannelError::Io)
}

/// Reads one message, blocking.
///
/// # Errors
/// [`ChannelError`] when the stream ends, fails, or carries something else.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> Result<T, ChannelError> {
    let mut len = [0; 4];
    read_exact(stream, &mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_BODY {
        return Err(ChannelError::Garbled("longer than any message"));
    }
    // Grown as bytes arrive, so that a garbled length costs no memory.
    let mut body = Vec::new();
    let got = stream
        .take(len as u64)
        .read_to_end(&mut body)
        .map_err(ChannelError::Io)?;
    if got < len {
        return Err(ChannelError::Closed);
    }
    match postcard::take_from_bytes(&body) {
        Ok((message, [])) => Ok(message),
        _ => Err(ChannelError::Garbled("undecodable")),
    }
}

fn read_exact(stream: &mut impl Read, buffer: &mut [u8]) -> Result<(), ChannelError> {
    stream.read_exact(buffer).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
            ChannelError::Closed
        }
        _ => ChannelError::Io(e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_and_an_end_is_told_from_garbage() {
        let mut wire = Vec::new();
        send(&mut wire, &FromHost::Unfit { reason: "x".into() }).unwrap();
        let mut read = wire.as_slice();
        let FromHost::Unfit { reason } = receive(&mut read).unwrap() else {
            panic!()
        };
        assert_eq!(reason, "x");
        assert!(matches!(
            receive::<FromHost>(&mut read),
            Err(ChannelError::Closed)
        ));

        wire.truncate(5);
        assert!(matches!(
            receive::<FromHost>(&mut wire.as_slice()),
            Err(ChannelError::Closed)
        ));
        let huge = u32::MAX.to_le_bytes();
        assert!(matches!(
            receive::<FromHost>(&mut huge.as_slice()),
            Err(ChannelError::Garbled(_))
        ));
        let unknown = [1, 0, 0, 0, 99];
        assert!(matches!(
            receive::<FromHost>(&mut unknown.as_slice()),
            Err(ChannelError::Garbled(_))
        ));
    }
}
