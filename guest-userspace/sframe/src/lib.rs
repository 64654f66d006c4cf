//! Writes SFrame sections for x86-64.
//!
//! The source of all layouts and numbers is the specification "The SFrame format", which is part of
//! GNU binutils: version 3 as of 2026-02-14 (binutils 2.46), and version 2 with its errata (2.41 to
//! 2.45). A section describes functions by rows: from an offset in the function on, how the
//! canonical frame address (CFA: the stack pointer before the call pushed the return address), the
//! return address and the caller's frame pointer are found.
//!
//! The writer knows where each field of what it wrote is ([`Section::encode`]), so that a test can
//! make one of them wrong.

mod encode;
mod error;
mod field;
mod reader;
mod rules;
#[cfg(test)]
mod tests;
mod wrong;

pub use error::EncodeError;
pub use field::{Encoded, Field, FieldKind};
pub use reader::{Registered, Registers, Said, walk};
pub use rules::{Base, Rule, Rules};
pub use wrong::{Numbers, Wrong};

/// A version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// What binutils 2.41 to 2.45 write.
    V2,
    /// What binutils 2.46 and newer write.
    V3,
}

/// A section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Of the format.
    pub version: Version,
    /// Where starts of functions are relative to the field that holds them (`true`), or to the
    /// section: `SFRAME_F_FDE_FUNC_START_PCREL`.
    pub pc_relative: bool,
    /// In order of their addresses.
    pub functions: Vec<Function>,
}

/// A function, or another piece of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Address of its first byte.
    pub start: u64,
    /// In bytes.
    pub size: u32,
    /// Rows that repeat every so many bytes, as those of a PLT do: `SFRAME_FDE_PCTYPE_MASK`.
    pub repeats: Option<u8>,
    /// Whether it is the frame of a signal, whose caller was interrupted and made no call. Version
    /// 2 cannot say so.
    pub signal: bool,
    /// In order of their offsets. None: the outermost frame, in version 3.
    pub rows: Vec<Row>,
}

/// How a caller is found from an offset in a function on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// From the start of the function, or of the block that repeats.
    pub offset: u32,
    /// What holds there.
    pub rules: Rules,
}
