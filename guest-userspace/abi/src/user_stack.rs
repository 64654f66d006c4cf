//! Stacks that a thread of the guest has found itself, in the handler of a signal that asked for them.

use serde::{Deserialize, Serialize};

/// The interpreted functions of workload `interpreter`, by number. Each calls the next one; the last calls the native
/// leaf.
pub const INTERPRETED: [&str; 3] = ["f", "g", "h"];

/// One signal: the cookie that came with it, and the stack that it interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserStack {
    /// The thread that took the signal, by its index.
    pub thread: u32,
    /// The signal's value.
    pub cookie: u64,
    /// How many cookies could not be sent to the thread since the last one.
    pub lost: u32,
    /// By frame pointers, innermost first.
    pub by_frame_pointers: Vec<u64>,
    /// By `.eh_frame`.
    pub by_dwarf: Vec<u64>,
    /// By `.eh_frame`, with what an interpreter executes in place of its own frame.
    pub semantic: Vec<UserFrame>,
}

/// A frame of a semantic stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UserFrame {
    /// The address of an instruction.
    Native(u64),
    /// A function of [`INTERPRETED`], by its number.
    Interpreted(u32),
}

impl UserFrame {
    /// Set in the word of an interpreted frame. No address of user mode has it.
    const IS_INTERPRETED: u64 = 1 << 63;

    /// In one word.
    #[must_use]
    pub const fn word(self) -> u64 {
        match self {
            Self::Native(address) => address,
            Self::Interpreted(function) => Self::IS_INTERPRETED | function as u64,
        }
    }

    /// From such a word.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word & Self::IS_INTERPRETED {
            0 => Self::Native(word),
            #[expect(clippy::cast_possible_truncation, reason = "the number has 32 bits")]
            _ => Self::Interpreted(word as u32),
        }
    }
}

/// Most frames of a stack, however it was found: more than the scenarios' chains have.
pub const USER_STACK_FRAMES: usize = 24;
/// Most stacks in one observation.
pub const USER_STACK_PIECE: usize = 32;
