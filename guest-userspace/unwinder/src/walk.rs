//! The walk: who knows the code at an address unwinds it.

use crate::memory::Stack;
use crate::registers::Registers;

/// One frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// The address of an instruction.
    Native(u64),
    /// The number of a function that an interpreter executes.
    Interpreted(u32),
}

impl Frame {
    /// Set in the word of an interpreted frame. No address of user mode has it.
    pub const INTERPRETED: u64 = 1 << 63;

    /// In one word, for memory that is shared.
    #[must_use]
    pub const fn word(self) -> u64 {
        match self {
            Self::Native(address) => address,
            Self::Interpreted(function) => Self::INTERPRETED | function as u64,
        }
    }

    /// From such a word.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word & Self::INTERPRETED {
            0 => Self::Native(word),
            #[expect(clippy::cast_possible_truncation, reason = "the number has 32 bits")]
            _ => Self::Interpreted(word as u32),
        }
    }
}

/// Why a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// At the outermost frame: the code says so, or its frame pointer is 0.
    Root,
    /// There is no room for another frame.
    Full,
    /// No unwinder is registered for the address.
    NoUnwinder,
    /// The unwinder has no description of the address.
    NotDescribed,
    /// The description has a rule that is not followed, or needs a register that is not known.
    NotFollowed,
    /// What is needed is outside of the stack, or not aligned.
    OffStack,
    /// The caller's frame would not lie above.
    NotGrowing,
    /// An interpreter's own data make no sense.
    BadInterpreter,
}

impl Stop {
    /// Its number, for memory that is shared.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// Frames in the slice of the caller.
#[derive(Debug)]
pub struct Frames<'a> {
    slots: &'a mut [Frame],
    used: usize,
}

impl Frames<'_> {
    /// Adds a frame.
    ///
    /// # Errors
    /// [`Stop::Full`].
    pub fn push(&mut self, frame: Frame) -> Result<(), Stop> {
        let slot = self.slots.get_mut(self.used).ok_or(Stop::Full)?;
        *slot = frame;
        self.used += 1;
        Ok(())
    }
}

/// Where a walk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// As far as they are known.
    pub registers: Registers,
    /// Whether the instruction is the next one, as it is where the thread was interrupted. Otherwise
    /// the address is a return address, and the call before it is what matters.
    pub is_next: bool,
}

impl At {
    /// The address to look up: inside of the call.
    #[must_use]
    pub const fn lookup(&self) -> u64 {
        let ip = self.registers.ip();
        if self.is_next { ip } else { ip.wrapping_sub(1) }
    }
}

/// Unwinds the code that it knows, one native frame at a time.
pub trait Unwinder: Sync {
    /// Reports the frame or frames at `at`.
    ///
    /// # Errors
    /// [`Stop`]: no room.
    fn report(&self, at: &At, stack: &Stack, frames: &mut Frames<'_>) -> Result<(), Stop> {
        let _ = stack;
        frames.push(Frame::Native(at.registers.ip()))
    }

    /// Goes to the caller.
    ///
    /// # Errors
    /// [`Stop`]: the stack ends here.
    fn step(&self, at: &mut At, stack: &Stack) -> Result<(), Stop>;
}

/// Code, and who unwinds it.
#[derive(Clone, Copy)]
pub struct Region<'a> {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Who knows it.
    pub unwinder: &'a dyn Unwinder,
}

impl core::fmt::Debug for Region<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Region({:#x}..{:#x})", self.start, self.end)
    }
}

/// What came of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// How many frames of the slice are filled.
    pub frames: usize,
    /// Why there are no more.
    pub stop: Stop,
}

/// Unwinds from an interruption. The first of `regions` that contains an address counts. The
/// interrupted instruction is reported in any case.
#[must_use]
pub fn walk(
    regions: &[Region<'_>],
    registers: Registers,
    stack: &Stack,
    frames: &mut [Frame],
) -> Walk {
    let mut frames = Frames {
        slots: frames,
        used: 0,
    };
    let mut at = At {
        registers,
        is_next: true,
    };
    let stop = loop {
        if let Err(stop) = one(regions, &mut at, stack, &mut frames) {
            break stop;
        }
    };
    Walk {
        frames: frames.used,
        stop,
    }
}

/// A frame, and the way to its caller. Each adds a frame, so that the room bounds the walk.
fn one(
    regions: &[Region<'_>],
    at: &mut At,
    stack: &Stack,
    frames: &mut Frames<'_>,
) -> Result<(), Stop> {
    let address = at.lookup();
    let found = { regions.iter() }.find(|it| (it.start..it.end).contains(&address));
    let Some(region) = found else {
        frames.push(Frame::Native(at.registers.ip()))?;
        return Err(Stop::NoUnwinder);
    };
    let before = frames.used;
    let reported = region.unwinder.report(at, stack, frames);
    if frames.used == before {
        frames.push(Frame::Native(at.registers.ip()))?;
    }
    reported?;
    region.unwinder.step(at, stack)
}
