//! Collects the messages of a sweep, to send several in one write: each write to the channel costs
//! the outer machine two notifications of its device and two interrupts, a good part of a trial's
//! time.

use std::io::Write;
use std::time::{Duration, Instant};

use super::channel::{self, ChannelError, FromHost};
use crate::plan::sweep::Message;

/// How long a message about a trial may wait for the next one.
const DELAY: Duration = Duration::from_millis(20);
/// Bytes that may wait.
const LIMIT: usize = 64 * 1024;

/// Messages that wait for a moment.
#[derive(Debug)]
pub(super) struct Outbox<'s, S> {
    stream: &'s mut S,
    waiting: Vec<u8>,
    written: Instant,
}

impl<'s, S: Write> Outbox<'s, S> {
    /// An empty one, for this stream.
    pub(super) fn new(stream: &'s mut S) -> Self {
        Self {
            stream,
            waiting: Vec::new(),
            written: Instant::now(),
        }
    }

    /// Takes a message. One that is not about a trial goes out at once, with those that wait.
    ///
    /// # Errors
    /// [`ChannelError`] where the stream fails.
    pub(super) fn put(&mut self, message: Message) -> Result<(), ChannelError> {
        let waits = matches!(
            message,
            Message::Trial(_) | Message::Missed { .. } | Message::Changed { .. }
        );
        channel::send(&mut self.waiting, &FromHost::Sweep(Box::new(message)))?;
        if waits && self.waiting.len() < LIMIT && self.written.elapsed() < DELAY {
            return Ok(());
        }
        let written = self.stream.write_all(&self.waiting);
        let written = written.and_then(|()| self.stream.flush());
        self.waiting.clear();
        self.written = Instant::now();
        written.map_err(ChannelError::Io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::sweep::Effort;

    #[test]
    fn what_is_put_in_comes_out_whole_and_in_order() {
        let mut wire = Vec::new();
        let mut outbox = Outbox::new(&mut wire);
        outbox
            .put(Message::Changed {
                trials: 1,
                pairs: 1,
            })
            .unwrap();
        outbox
            .put(Message::Changed {
                trials: 1,
                pairs: 2,
            })
            .unwrap();
        outbox.put(Message::Done(Effort::default())).unwrap();
        let mut read = wire.as_slice();
        let mut next = || match channel::receive(&mut read).unwrap() {
            FromHost::Sweep(message) => *message,
            other => panic!("{other:?}"),
        };
        assert!(matches!(
            next(),
            Message::Changed {
                trials: 1,
                pairs: 1
            }
        ));
        assert!(matches!(
            next(),
            Message::Changed {
                trials: 1,
                pairs: 2
            }
        ));
        assert!(matches!(next(), Message::Done(_)));
    }
}
