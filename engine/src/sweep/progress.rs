//! Tells that a path is being recorded: that of an execve takes tens of seconds, and an outer
//! machine that says nothing for long is taken for dead.

use std::time::{Duration, Instant};

use super::error::SweepError;
use crate::plan::sweep::Message;

/// Time between two messages.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts instructions, and tells of them now and then.
pub(super) struct Progress<'t> {
    tell: &'t mut dyn FnMut(Vec<Message>) -> bool,
    instructions: u32,
    told: Instant,
}

impl<'t> Progress<'t> {
    pub(super) fn new(tell: &'t mut dyn FnMut(Vec<Message>) -> bool) -> Self {
        Self {
            tell,
            instructions: 0,
            told: Instant::now(),
        }
    }

    /// One more instruction was executed.
    ///
    /// # Errors
    /// [`SweepError::Unheard`] if nobody listens any more.
    pub(super) fn step(&mut self) -> Result<(), SweepError> {
        self.instructions = self.instructions.saturating_add(1);
        if self.told.elapsed() < PAUSE {
            return Ok(());
        }
        self.told = Instant::now();
        let instructions = self.instructions;
        match (self.tell)(vec![Message::Recording { instructions }]) {
            true => Ok(()),
            false => Err(SweepError::Unheard),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_tells_of_all_instructions_and_an_end_that_nobody_listens() {
        let mut told = Vec::new();
        let mut tell = |messages: Vec<Message>| {
            told.extend(messages);
            told.len() < 2
        };
        let mut progress = Progress::new(&mut tell);
        let long_ago = Instant::now().checked_sub(PAUSE).unwrap();
        progress.step().unwrap();
        progress.told = long_ago;
        progress.step().unwrap();
        progress.step().unwrap();
        progress.told = long_ago;
        assert!(matches!(progress.step(), Err(SweepError::Unheard)));
        let expected = [2, 4].map(|instructions| Message::Recording { instructions });
        assert_eq!(told, expected);
    }
}
