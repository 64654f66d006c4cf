//! Commands from the host to the agent during a trial, each on a workload thread.
//!
//! A helper thread of the agent, bound to the last CPU, polls the command words (in
//! [`crate::shared`]). The host writes the words of a command, and its number last. The helper, or
//! the thread itself for what is done between two iterations, writes the result and then the
//! number, and sends the mark [`crate::mark::COMMANDED`]. There is one command at a time.

use serde::{Deserialize, Serialize};

/// A command on a workload thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Command {
    /// Bind the thread to this CPU.
    Migrate {
        /// The CPU.
        cpu: u32,
    },
    /// Send SIGUSR1, whose handler does nothing.
    Signal,
    /// Block the next access of anyone to the page that contains this frame of the thread's stack,
    /// by userfaultfd, until [`Command::Release`]. The mark [`crate::mark::BLOCKED`] tells that
    /// something waits. For workloads `missing-pages` and `process`, which take the page out of the
    /// page tables.
    Block {
        /// The frame, from 1: the page contains the return address that the walk reads for it.
        frame: u32,
    },
    /// Release the blocked page.
    Release,
    /// Unmap the page that contains this frame of the thread's stack during the system call of its
    /// next iteration. For workload `missing-pages`, whose leaf moves the page elsewhere.
    Unmap {
        /// The frame, from 1.
        frame: u32,
    },
    /// Page out the page that contains this frame of the thread's stack before the system call of
    /// its next iteration. For workload `paged-out`.
    PageOut {
        /// The frame, from 1.
        frame: u32,
    },
    /// Replace the page that contains this frame of the thread's stack, in its next iteration, by a
    /// page of a file that is truncated before the system call and restored after it. For workload
    /// `missing-pages`.
    Truncate {
        /// The frame, from 1.
        frame: u32,
    },
    /// Send SIGKILL to the process of the thread's iteration. For workload `process`.
    Kill,
    /// Have the process of the thread's next iteration execute another program instead of its
    /// system call. For workload `process`.
    Exec,
}

/// A command and its thread, as words of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandWords {
    /// The command's number.
    pub what: u64,
    /// The thread.
    pub thread: u64,
    /// The CPU or frame.
    pub argument: u64,
}

impl Command {
    /// Encodes the command.
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

    /// Decodes a command and its thread.
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
