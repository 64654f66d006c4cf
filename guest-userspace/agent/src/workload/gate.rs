//! The gate at which threads wait until the events are enabled.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open,
    Cancelled,
}

/// Closed at first; opened or cancelled once.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    /// Sleeps while the gate is closed; returns whether it opened.
    pub(crate) fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self
            .changed
            .wait_while(state, |state| *state == State::Closed)
            .unwrap_or_else(PoisonError::into_inner);
        *state == State::Open
    }

    pub(crate) fn open(&self) {
        self.leave_closed(State::Open);
    }

    /// Has no effect on an open gate.
    pub(crate) fn cancel(&self) {
        self.leave_closed(State::Cancelled);
    }

    fn leave_closed(&self, to: State) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Closed {
            *state = to;
        }
        drop(state);
        self.changed.notify_all();
    }
}
