//! What the host has the agent do to a workload thread in the middle of a trial.
//!
//! A helper thread of the agent, bound to the last CPU, looks at the command words (in
//! [`crate::shared`]) over and over. The host writes the words of a command and its number last;
//! the helper (for what is done between two iterations, the thread itself) writes the result and the number before
//! it, then the mark [`crate::mark::COMMANDED`]. One command is under way at a time.

use serde::{Deserialize, Serialize};

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The thread may run on this CPU only.
    Migrate {
        /// The CPU.
        cpu: u32,
    },
    /// A signal, SIGUSR1, whose handler does nothing.
    Signal,
    /// The next look at the page that holds this frame of the thread's stack blocks, by
    /// userfaultfd, whoever looks, until [`Command::Release`]. For workloads `missing-pages` and
    /// `process`, which take the page out of the page tables. That it blocked, [`crate::mark::BLOCKED`] says.
    Block {
        /// The frame, from 1: the return address that the walk reads for it.
        frame: u32,
    },
    /// The page is let go.
    Release,
    /// In the thread's next iteration the page that holds this frame of its stack is not mapped
    /// during the system call. For workload `missing-pages`, which moves it elsewhere in its leaf.
    Unmap {
        /// The frame, from 1.
        frame: u32,
    },
    /// In the thread's next iteration the page that holds this frame of its stack is in memory no
    /// more when its system call is made. For workload `paged-out`.
    PageOut {
        /// The frame, from 1.
        frame: u32,
    },
    /// In the thread's next iteration the page that holds this frame of its stack is one of a file, which
    /// is truncated before the system call and is what it was behind it. For workload `missing-pages`.
    Truncate {
        /// The frame, from 1.
        frame: u32,
    },
    /// The process of the thread's iteration gets SIGKILL. For workload `process`.
    Kill,
    /// The process of the thread's next iteration executes another program instead of its system
    /// call. For workload `process`.
    Exec,
}

/// The words of a command for a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandWords {
    /// What.
    pub what: u64,
    /// The thread.
    pub thread: u64,
    /// CPU or frame.
    pub argument: u64,
}

impl Command {
    /// As words.
    #[must_use]
    pub fn words(self, thread: u32) -> CommandWords {
        let (what, argument) = match self {
            Self::Migrate { cpu } => (1, cpu),
            Self::Signal => (2, 0),
            Self::Block { frame } => (3, frame),
            Self::Release => (4, 0),
            Self::Unmap { frame } => (5, frame),
            Self::PageOut { frame } => (6, frame),
            Self::Kill => (7, 0),
            Self::Exec => (8, 0),
            Self::Truncate { frame } => (9, frame),
        };
        CommandWords {
            what,
            thread: thread.into(),
            argument: argument.into(),
        }
    }

    /// From words: the command and its thread.
    #[must_use]
    pub fn from_words(words: CommandWords) -> Option<(Self, u32)> {
        let argument = u32::try_from(words.argument).ok()?;
        let command = match words.what {
            1 => Self::Migrate { cpu: argument },
            2 => Self::Signal,
            3 => Self::Block { frame: argument },
            4 => Self::Release,
            5 => Self::Unmap { frame: argument },
            6 => Self::PageOut { frame: argument },
            7 => Self::Kill,
            8 => Self::Exec,
            9 => Self::Truncate { frame: argument },
            _ => return None,
        };
        Some((command, u32::try_from(words.thread).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_back() {
        for command in [
            Command::Migrate { cpu: 3 },
            Command::Signal,
            Command::Block { frame: 300 },
            Command::Release,
            Command::Unmap { frame: 301 },
            Command::PageOut { frame: 302 },
            Command::Kill,
            Command::Exec,
            Command::Truncate { frame: 303 },
        ] {
            assert_eq!(Command::from_words(command.words(7)), Some((command, 7)));
        }
        let unknown = CommandWords {
            what: 10,
            thread: 0,
            argument: 0,
        };
        assert_eq!(Command::from_words(unknown), None);
    }
}
