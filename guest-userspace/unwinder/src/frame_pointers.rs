//! By frame pointers, as the kernel does.

use crate::memory::Stack;
use crate::registers::Registers;
use crate::walk::{At, Stop, Unwinder};

/// Follows frame pointers: the caller's lies where `rbp` points, the return address behind it.
#[derive(Debug, Clone, Copy)]
pub struct FramePointers;

impl Unwinder for FramePointers {
    fn step(&self, at: &mut At, stack: &Stack) -> Result<(), Stop> {
        let fp = at.registers.fp().ok_or(Stop::NotFollowed)?;
        let sp = at.registers.sp();
        if fp == 0 {
            return Err(Stop::Root);
        }
        // The next frame would lie below what is in use.
        if fp < sp {
            return Err(Stop::NotGrowing);
        }
        let return_slot = fp.checked_add(8).ok_or(Stop::OffStack)?;
        let cfa = fp.checked_add(16).ok_or(Stop::OffStack)?;
        let ip = stack.word(return_slot).ok_or(Stop::OffStack)?;
        let caller = stack.word(fp).ok_or(Stop::OffStack)?;
        at.registers = Registers::new(ip, cfa, caller);
        at.is_next = false;
        Ok(())
    }
}
