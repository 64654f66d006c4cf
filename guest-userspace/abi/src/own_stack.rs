//! What came of system calls by which a thread asks for its own stack (`proposal:own-stack`).

use serde::{Deserialize, Serialize};

/// How the thread asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OwnStackCase {
    /// With room for every frame.
    Whole,
    /// With no page of its stack and of the buffer in the page tables.
    NotPresent,
    /// With no page of its stack in the page tables. The thread looks afterwards which are.
    StackNotPresent,
    /// With room for four frames.
    Cut,
    /// With no room. The stack is not present, and the thread looks, here and in the next two.
    NoRoom,
    /// With a flag that means nothing.
    Flags,
    /// With an address beyond the address space of user mode.
    BeyondAddressSpace,
    /// With a buffer that may only be read.
    ReadOnly,
    /// With a buffer of which only the first two words may be accessed.
    IntoHole,
    /// While another thread unmaps the buffer and maps it again.
    Unmapped,
    /// In the handler of a signal that the leaf sends itself.
    InHandler,
}

impl OwnStackCase {
    /// All, in the order of the iterations.
    pub const ALL: [Self; 11] = [
        Self::Whole,
        Self::NotPresent,
        Self::StackNotPresent,
        Self::Cut,
        Self::NoRoom,
        Self::Flags,
        Self::BeyondAddressSpace,
        Self::ReadOnly,
        Self::IntoHole,
        Self::Unmapped,
        Self::InHandler,
    ];

    /// For messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "room for all",
            Self::NotPresent => "stack and buffer not present",
            Self::StackNotPresent => "stack not present",
            Self::Cut => "room for four",
            Self::NoRoom => "no room",
            Self::Flags => "an unknown flag",
            Self::BeyondAddressSpace => "a buffer of the kernel",
            Self::ReadOnly => "a buffer that may only be read",
            Self::IntoHole => "a buffer that ends in a hole",
            Self::Unmapped => "a buffer that is unmapped meanwhile",
            Self::InHandler => "in a signal handler",
        }
    }
}

/// Calls with one outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OwnStackCalls {
    /// The thread.
    pub thread: u32,
    /// How it asked.
    pub case: OwnStackCase,
    /// How often.
    pub count: u32,
    /// What the call returned: the number of frames, or a negative errno.
    pub answer: i64,
    /// The words of the buffer that were written, by what they held before. Unknown in
    /// [`OwnStackCase::Unmapped`] and where there is no buffer.
    pub frames: Vec<u64>,
    /// Whether a page of the stack was in the page tables after the call, and none was before. `None` where
    /// the thread did not look.
    pub touched_stack: Option<bool>,
    /// Of [`OwnStackCase::InHandler`]: the instruction behind the handler's call, and the function to which the
    /// kernel has the handler return. 0 otherwise.
    pub handler: [u64; 2],
}
