//! The start line.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open,
    Cancelled,
}

/// Closed at first; opens, or is cancelled, once.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    /// Sleeps while the gate is closed. True: go; false: go home.
    pub(super) fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self
            .changed
            .wait_while(state, |state| *state == State::Closed)
            .unwrap_or_else(PoisonError::into_inner);
        *state == State::Open
    }

    pub(super) fn open(&self) {
        self.leave_closed(State::Open);
    }

    /// Does nothing to a gate that is open.
    pub(super) fn cancel(&self) {
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
