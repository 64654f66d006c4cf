//! Unwinders of this program's own stacks, for its signal handlers.

use unwindlab_abi::user_stack::UserFrame;
use unwindlab_unwinder::{
    Dwarf, Frame, FramePointers, Image, ImageError, ProgramHeader, Region, Registers, Stack, Walk,
    walk,
};

use crate::chain::interpreter;

/// How to unwind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By frame pointers, as the kernel does.
    FramePointers,
    /// By `.eh_frame`.
    Dwarf,
    /// By `.eh_frame`, with what the interpreter executes in place of its own frame.
    Semantic,
}

/// Why there are none.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum UnwindersError {
    /// The program has no tables.
    #[error("the agent's unwind tables: {0}")]
    Image(#[from] ImageError),
    /// They have no index, or are not as expected.
    #[error("the agent's .eh_frame_hdr has no table to search in")]
    NoTable,
}

/// The unwinders of this program. Made before the first signal: the walk itself makes nothing.
#[derive(Debug)]
pub struct Unwinders {
    dwarf: Dwarf,
    text: (u64, u64),
}

impl Unwinders {
    /// Reads where the tables are.
    ///
    /// # Errors
    /// [`UnwindersError`].
    pub fn new() -> Result<Self, UnwindersError> {
        // SAFETY: it only reads the auxiliary vector.
        let value = |kind| unsafe { libc::getauxval(kind) };
        let address = usize::try_from(value(libc::AT_PHDR)).unwrap_or(0);
        let count = usize::try_from(value(libc::AT_PHNUM)).unwrap_or(0);
        if address == 0 {
            return Err(ImageError::NoHeader.into());
        }
        let headers = std::ptr::with_exposed_provenance::<ProgramHeader>(address);
        // SAFETY: the kernel says that they are there, and the loader leaves them there; they are
        // this program's.
        let image = unsafe { Image::of_program(std::slice::from_raw_parts(headers, count)) }?;
        Ok(Self {
            dwarf: Dwarf::new(&image).ok_or(UnwindersError::NoTable)?,
            text: image.text(),
        })
    }

    /// Unwinds. It is async-signal-safe.
    #[must_use]
    pub fn walk(&self, way: Way, from: Registers, stack: &Stack, frames: &mut [Frame]) -> Walk {
        let everywhere = Region {
            start: 0,
            end: u64::MAX,
            unwinder: &FramePointers,
        };
        let native = Region {
            start: self.text.0,
            end: self.text.1,
            unwinder: &self.dwarf,
        };
        match way {
            Way::FramePointers => walk(&[everywhere], from, stack, frames),
            Way::Dwarf => walk(&[native], from, stack, frames),
            Way::Semantic => {
                let interpreter = interpreter::unwinder(&self.dwarf);
                let regions = [interpreter::region(&interpreter), native];
                walk(&regions, from, stack, frames)
            }
        }
    }
}

/// A frame for the host.
#[must_use]
pub const fn shown(frame: Frame) -> UserFrame {
    match frame {
        Frame::Native(address) => UserFrame::Native(address),
        Frame::Interpreted(function) => UserFrame::Interpreted(function),
    }
}

/// The registers that a signal interrupted.
#[must_use]
pub fn registers(context: &libc::ucontext_t) -> Registers {
    /// By DWARF number.
    const ORDER: [libc::c_int; 17] = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
        libc::REG_RIP,
    ];
    Registers::all(ORDER.map(|which| {
        let value = usize::try_from(which).ok();
        let value = value.and_then(|it| context.uc_mcontext.gregs.get(it));
        value.copied().unwrap_or(0).cast_unsigned()
    }))
}
