//! How scenarios name instructions: `__x64_sys_getppid+0x10`, the kernel's own notation, or
//! `kernel/unwind/deferred.c:123`, a line of its source.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer};

use super::units::{Notation, NotationError, notation};

/// A symbol and an offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolOffset {
    /// The symbol's name.
    pub symbol: String,
    /// Bytes from the symbol's start.
    pub offset: u64,
}

impl Notation for SymbolOffset {
    const EXPECTED: &'static str =
        "a symbol and an offset such as `__x64_sys_getppid` or `__x64_sys_getppid+0x10`";
    const NAME: &'static str = "SymbolOffset";
    const PATTERN: &'static str = "^[A-Za-z_][A-Za-z0-9_.$]*(\\+(0x[0-9a-f]+|[0-9]+))?$";
}

impl FromStr for SymbolOffset {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let (symbol, offset) = match text.split_once('+') {
            None => (text, 0),
            Some((symbol, offset)) => (symbol, number(offset)?),
        };
        let mut chars = symbol.chars();
        let starts_well = chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        let goes_on_well = chars.all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
        if !(starts_well && goes_on_well) {
            return Err(NotationError);
        }
        Ok(Self {
            symbol: symbol.to_owned(),
            offset,
        })
    }
}
notation!(SymbolOffset);

impl fmt::Display for SymbolOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.symbol, self.offset)
    }
}

/// A line of the kernel's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file's path in the source tree; the end of the path suffices.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An instruction of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelPlace {
    /// Named by a symbol.
    Symbol(SymbolOffset),
    /// The first instruction of a line of the source, for a kernel with DWARF.
    Line(SourceLine),
}

impl Notation for KernelPlace {
    const EXPECTED: &'static str = "a symbol and an offset such as `__x64_sys_getppid` or \
         `__x64_sys_getppid+0x10`, or a line of the source such as `kernel/unwind/deferred.c:123`";
    const NAME: &'static str = "KernelPlace";
    const PATTERN: &'static str =
        "^([A-Za-z_][A-Za-z0-9_.$]*(\\+(0x[0-9a-f]+|[0-9]+))?|[A-Za-z0-9_./+-]+:[1-9][0-9]*)$";
}

impl FromStr for KernelPlace {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let Some((file, line)) = text.rsplit_once(':') else {
            return text.parse().map(Self::Symbol);
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_./+-".contains(c);
        if file.is_empty() || !file.chars().all(plain) || line.starts_with(['0', '+']) {
            return Err(NotationError);
        }
        Ok(Self::Line(SourceLine {
            file: file.to_owned(),
            line: line.parse().map_err(|_| NotationError)?,
        }))
    }
}
notation!(KernelPlace);

impl fmt::Display for KernelPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(place) => place.fmt(f),
            Self::Line(line) => line.fmt(f),
        }
    }
}

/// Decimal, or hexadecimal with `0x`; `u64::from_str` alone would also take a sign.
fn number(text: &str) -> Result<u64, NotationError> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(NotationError);
    }
    u64::from_str_radix(digits, radix).map_err(|_| NotationError)
}
