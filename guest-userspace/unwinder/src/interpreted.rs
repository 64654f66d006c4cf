//! What an interpreter executes.

use crate::memory::Stack;
use crate::walk::{At, Frame, Frames, Stop, Unwinder};

/// Calls that an activation has room for.
pub const MAX_CALLS: usize = 16;

/// A call of an interpreted function.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Call {
    /// The number of the function.
    pub function: u64,
    /// Where its caller goes on.
    pub return_to: u64,
}

/// The stack of interpreted functions of one activation of the interpreter. The interpreter writes
/// a call before it counts it, so that at each of its instructions those counted are those made.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activation {
    /// How many calls there are.
    pub depth: u64,
    /// Outermost first.
    pub calls: [Call; MAX_CALLS],
}

impl Activation {
    /// The address of one of its words on a stack, from the activation's own.
    const DEPTH: u64 = core::mem::offset_of!(Self, depth) as u64;
    const CALLS: u64 = core::mem::offset_of!(Self, calls) as u64;
    const CALL: u64 = size_of::<Call>() as u64;
}

/// Unwinds an interpreter: reports the functions that it executes, innermost first, in place of its
/// own frame. The way to its caller is native.
///
/// The interpreter has a frame pointer, and its activation lies on its stack, at a fixed
/// distance below: so instruction, stack and frame pointer are enough to find it.
#[derive(Clone, Copy)]
pub struct Interpreted<'a> {
    /// The instructions between which its frame and activation are complete.
    pub framed: (u64, u64),
    /// How far below the frame pointer the activation lies.
    pub distance: u64,
    /// How many functions the program has.
    pub functions: u64,
    /// Who knows the interpreter's code.
    pub native: &'a dyn Unwinder,
}

impl core::fmt::Debug for Interpreted<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Interpreted({:#x}..{:#x})", self.framed.0, self.framed.1)
    }
}

impl Unwinder for Interpreted<'_> {
    fn report(&self, at: &At, stack: &Stack, frames: &mut Frames<'_>) -> Result<(), Stop> {
        let native = Frame::Native(at.registers.ip());
        if !(self.framed.0..self.framed.1).contains(&at.lookup()) {
            return frames.push(native);
        }
        let fp = at.registers.fp().ok_or(Stop::NotFollowed)?;
        let activation = fp.checked_sub(self.distance).ok_or(Stop::OffStack)?;
        let word = |offset: u64| {
            let address = activation.checked_add(offset).ok_or(Stop::OffStack)?;
            stack.word(address).ok_or(Stop::OffStack)
        };
        let depth = word(Activation::DEPTH)?;
        if depth > MAX_CALLS as u64 {
            return Err(Stop::BadInterpreter);
        }
        if depth == 0 {
            return frames.push(native);
        }
        for call in (0..depth).rev() {
            let function = word(Activation::CALLS + call * Activation::CALL)?;
            let number = u32::try_from(function).ok();
            let number = number.filter(|_| function < self.functions);
            frames.push(Frame::Interpreted(number.ok_or(Stop::BadInterpreter)?))?;
        }
        Ok(())
    }

    fn step(&self, at: &mut At, stack: &Stack) -> Result<(), Stop> {
        self.native.step(at, stack)
    }
}
