//! What an agent may say when: one table. Whatever is not in it is the guest's fault.

use std::fmt;

use unwindlab_abi::message::AgentMessage;

/// How far the conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// Nothing was said.
    #[default]
    Silent,
    /// The agent has its plan, and announces what it has set up.
    Preparing,
    /// The workload runs.
    Running,
    /// The workload has ended, and the agent tells what it saw.
    Finished,
    /// The last word was said.
    Over,
}

/// The messages without what is in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in `AgentMessage`")]
pub(super) enum Word {
    Hello,
    Unsupported,
    Locate,
    Task,
    Ring,
    Event,
    Lab,
    TracefsFormat,
    TracefsBuffer,
    UserMode,
    Shared,
    Thread,
    Symbols,
    Program,
    Ready,
    Finished,
    Observed,
    Surveyed,
    Tracefs,
    PerfScript,
    PerfData,
    PerfToolFailed,
    KernelLog,
    Bye,
    Failed,
}

/// A message that has no place where it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent says {word} {state}")]
pub(crate) struct OutOfTurn {
    word: Word,
    state: State,
}

/// In these states the message may come, and this one follows.
type Row = (Word, &'static [State], State);

/// The table.
const TABLE: [Row; 25] = {
    use State::{Finished, Over, Preparing, Running, Silent};
    /// What an agent says before it is ready.
    const SET_UP: &[State] = &[Preparing];
    /// What it says behind the workload.
    const BEHIND: &[State] = &[Finished];
    [
        (Word::Hello, &[Silent], Preparing),
        (Word::Unsupported, SET_UP, Over),
        (Word::Locate, SET_UP, Preparing),
        (Word::Task, SET_UP, Preparing),
        (Word::Ring, SET_UP, Preparing),
        (Word::Event, SET_UP, Preparing),
        (Word::Lab, SET_UP, Preparing),
        (Word::TracefsFormat, SET_UP, Preparing),
        (Word::TracefsBuffer, SET_UP, Preparing),
        (Word::UserMode, SET_UP, Preparing),
        (Word::Shared, SET_UP, Preparing),
        (Word::Thread, SET_UP, Preparing),
        (Word::Symbols, SET_UP, Preparing),
        (Word::Program, SET_UP, Preparing),
        (Word::Ready, SET_UP, Running),
        (Word::Finished, &[Running], Finished),
        (Word::Observed, BEHIND, Finished),
        (Word::Surveyed, BEHIND, Finished),
        (Word::Tracefs, BEHIND, Finished),
        (Word::PerfScript, BEHIND, Finished),
        (Word::PerfData, BEHIND, Finished),
        (Word::PerfToolFailed, &[Preparing, Running, Finished], Over),
        (Word::KernelLog, BEHIND, Finished),
        (Word::Bye, BEHIND, Over),
        (Word::Failed, &[Silent, Preparing, Running, Finished], Over),
    ]
};

impl State {
    /// The state behind a message.
    ///
    /// # Errors
    /// [`OutOfTurn`] where the message has no place.
    pub(super) fn after(self, word: Word) -> Result<Self, OutOfTurn> {
        let mut rows = TABLE.iter();
        let row = rows.find(|(it, ..)| *it == word);
        let next = row.filter(|(_, states, _)| states.contains(&self));
        let next = next.map(|(.., next)| *next);
        next.ok_or(OutOfTurn { word, state: self })
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Silent => "before Hello",
            Self::Preparing => "before it is ready",
            Self::Running => "while the workload runs",
            Self::Finished => "behind the workload",
            Self::Over => "behind its last word",
        })
    }
}

impl fmt::Display for Word {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self:?}")
    }
}

impl From<&AgentMessage> for Word {
    fn from(message: &AgentMessage) -> Self {
        match message {
            AgentMessage::Hello { .. } => Self::Hello,
            AgentMessage::Unsupported { .. } => Self::Unsupported,
            AgentMessage::Locate { .. } => Self::Locate,
            AgentMessage::Task => Self::Task,
            AgentMessage::Ring(_) => Self::Ring,
            AgentMessage::Event(_) => Self::Event,
            AgentMessage::Lab { .. } => Self::Lab,
            AgentMessage::TracefsFormat(_) => Self::TracefsFormat,
            AgentMessage::TracefsBuffer(_) => Self::TracefsBuffer,
            AgentMessage::UserMode(_) => Self::UserMode,
            AgentMessage::Shared { .. } => Self::Shared,
            AgentMessage::Thread(_) => Self::Thread,
            AgentMessage::Symbols(_) => Self::Symbols,
            AgentMessage::Program(_) => Self::Program,
            AgentMessage::Ready => Self::Ready,
            AgentMessage::Finished { .. } => Self::Finished,
            AgentMessage::Observed(_) => Self::Observed,
            AgentMessage::Surveyed(_) => Self::Surveyed,
            AgentMessage::Tracefs(_) => Self::Tracefs,
            AgentMessage::PerfScript(_) => Self::PerfScript,
            AgentMessage::PerfData(_) => Self::PerfData,
            AgentMessage::PerfToolFailed { .. } => Self::PerfToolFailed,
            AgentMessage::KernelLog(_) => Self::KernelLog,
            AgentMessage::Bye => Self::Bye,
            AgentMessage::Failed { .. } => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows a message in each state, by the first letter of the state that follows; `-`: the guest's fault.
    const CELLS: [(Word, &str); 25] = [
        (Word::Hello, "P----"),
        (Word::Unsupported, "-O---"),
        (Word::Locate, "-P---"),
        (Word::Task, "-P---"),
        (Word::Ring, "-P---"),
        (Word::Event, "-P---"),
        (Word::Lab, "-P---"),
        (Word::TracefsFormat, "-P---"),
        (Word::TracefsBuffer, "-P---"),
        (Word::UserMode, "-P---"),
        (Word::Shared, "-P---"),
        (Word::Thread, "-P---"),
        (Word::Symbols, "-P---"),
        (Word::Program, "-P---"),
        (Word::Ready, "-R---"),
        (Word::Finished, "--F--"),
        (Word::Observed, "---F-"),
        (Word::Surveyed, "---F-"),
        (Word::Tracefs, "---F-"),
        (Word::PerfScript, "---F-"),
        (Word::PerfData, "---F-"),
        (Word::PerfToolFailed, "-OOO-"),
        (Word::KernelLog, "---F-"),
        (Word::Bye, "---O-"),
        (Word::Failed, "OOOO-"),
    ];
    const STATES: [State; 5] = [
        State::Silent,
        State::Preparing,
        State::Running,
        State::Finished,
        State::Over,
    ];

    #[test]
    fn every_cell() {
        for (word, cells) in CELLS {
            let found = STATES.map(|state| match state.after(word) {
                Ok(State::Silent) => 'S',
                Ok(State::Preparing) => 'P',
                Ok(State::Running) => 'R',
                Ok(State::Finished) => 'F',
                Ok(State::Over) => 'O',
                Err(OutOfTurn {
                    word: it,
                    state: at,
                }) => {
                    assert_eq!((it, at), (word, state));
                    '-'
                }
            });
            assert_eq!(found.iter().collect::<String>(), cells, "{word}");
        }
    }

    #[test]
    fn what_is_said_out_of_turn() {
        let wrong = State::Running.after(Word::Unsupported).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "the agent says Unsupported while the workload runs"
        );
    }
}
