//! What a machine tells, several messages at a time: each time wakes the thread that gathers, on a CPU that has nothing else to do,
//! and an emulated host has no core to spare for it. It also costs the outer machine two notifications of its device and two interrupts,
//! a good part of a trial's time.

use std::mem::take;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::engine::FromWorker;
use crate::plan::sweep::Message;

/// How long a message may wait for the next one.
const DELAY: Duration = Duration::from_millis(20);

/// Messages that wait for a moment. None is lost: those that still wait go out when this is dropped.
pub(super) struct Teller<'p> {
    send: &'p Sender<FromWorker>,
    waiting: Vec<Message>,
    told: Instant,
}

impl<'p> Teller<'p> {
    pub(super) fn new(send: &'p Sender<FromWorker>) -> Self {
        Self {
            send,
            waiting: Vec::new(),
            told: Instant::now(),
        }
    }

    /// Takes a message. One that is not about a trial goes out at once, with those that wait: other machines go by
    /// it. Whether anybody listens, as far as is known.
    pub(super) fn tell(&mut self, message: Message) -> bool {
        let waits = matches!(
            message,
            Message::Trial(_) | Message::Missed { .. } | Message::Changed { .. }
        );
        self.waiting.push(message);
        (waits && self.told.elapsed() < DELAY) || self.tell_now()
    }

    /// For how long nothing was told.
    pub(super) fn silent(&self) -> Duration {
        self.told.elapsed()
    }

    fn tell_now(&mut self) -> bool {
        self.told = Instant::now();
        let waiting = take(&mut self.waiting);
        self.send.send(FromWorker::Tell(waiting)).is_ok()
    }
}

impl Drop for Teller<'_> {
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            self.tell_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn changed(trials: u64) -> Message {
        Message::Changed { trials, pairs: 0 }
    }

    /// The numbers of the messages that came, by when they came together.
    fn numbers(messages: impl IntoIterator<Item = FromWorker>) -> Vec<Vec<u64>> {
        let number = |message: Message| match message {
            Message::Changed { trials, .. } => trials,
            other => panic!("{other:?}"),
        };
        let numbers = |message| match message {
            FromWorker::Tell(messages) => messages.into_iter().map(number).collect(),
            FromWorker::Ended(_) => panic!("ended"),
        };
        messages.into_iter().map(numbers).collect()
    }

    #[test]
    fn messages_go_out_in_order_and_none_is_lost() {
        let (send, receive) = channel();
        let mut teller = Teller::new(&send);
        teller.told = Instant::now() + Duration::from_secs(60);
        assert!(teller.tell(changed(1)) && teller.tell(changed(2)));
        assert!(numbers(receive.try_iter()).is_empty(), "they wait");
        teller.told = Instant::now() - DELAY;
        assert!(teller.tell(changed(3)));
        assert_eq!(numbers(receive.try_iter()), [[1, 2, 3]]);
        teller.told = Instant::now() + Duration::from_secs(60);
        teller.tell(changed(4));
        drop(teller);
        assert_eq!(numbers(receive.try_iter()), [[4]]);
    }

    #[test]
    fn what_is_not_about_a_trial_goes_out_at_once() {
        let (send, receive) = channel();
        let mut teller = Teller::new(&send);
        teller.told = Instant::now() + Duration::from_secs(60);
        assert!(teller.tell(changed(1)) && teller.tell(Message::Working));
        let Ok(FromWorker::Tell(messages)) = receive.try_recv() else {
            panic!("they wait");
        };
        assert!(matches!(
            messages.as_slice(),
            [Message::Changed { .. }, Message::Working]
        ));
    }

    #[test]
    fn it_knows_when_nobody_listens() {
        let (send, receive) = channel();
        drop(receive);
        let mut teller = Teller::new(&send);
        teller.told = Instant::now() - DELAY;
        assert!(!teller.tell(changed(1)));
    }
}
