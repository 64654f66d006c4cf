//! Unwinders that run inside a signal handler.
//!
//! [`walk`] takes the registers at the interruption and writes frames into a slice of the caller.
//! Nothing here allocates (the crate is `no_std` and does not link `alloc`), takes a lock, makes a
//! system call or panics; a walk ends after as many steps as the slice has frames; and stack memory
//! is read inside the bounds of the known stack only, so that a stack that lies costs frames and
//! never a fault.
//!
//! Three unwinders, each of which knows a part of the code ([`Region`]):
//!
//! - [`FramePointers`]: as the kernel walks (`unwind_user_next_fp` in kernel/unwind/user.c).
//! - [`Dwarf`]: by the `.eh_frame` of the program ([`Image`]), read by gimli. Where `.eh_frame` says nothing, the walk ends
//!   and says so: framehop would go on by frame pointers, and a guess is not distinguishable from a frame. gimli recovers all
//!   registers, framehop 0.16 `rip`, `rsp` and `rbp` only.
//! - [`Interpreted`]: reports what an interpreter executes, by function, in place of its own frame.
//!
//! The contract between unwinders: who takes over finds `rip`, `rsp` and `rbp` of the frame in
//! [`Registers`], and more registers if those below recovered them; whether the address is a return address
//! is in [`At`]. An unwinder reports its frames, and leaves the registers of the caller.

#![no_std]

#[cfg(test)]
extern crate std;

mod dwarf;
mod frame_pointers;
mod image;
mod interpreted;
mod memory;
mod registers;
#[cfg(test)]
mod tests;
mod walk;

pub use dwarf::Dwarf;
pub use frame_pointers::FramePointers;
pub use image::{Image, ImageError, ProgramHeader};
pub use interpreted::{Activation, Call, Interpreted, MAX_CALLS};
pub use memory::Stack;
pub use registers::{Register, Registers};
pub use walk::{At, Frame, Frames, Region, Stop, Unwinder, Walk, walk};
