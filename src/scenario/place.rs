//! Instructions as they are named in scenarios: `__x64_sys_getppid+0x10`, the kernel's own
//! notation.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer};

use super::units::{NotThat, Notation, notation};

/// A symbol, and bytes from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolOffset {
    /// Name.
    pub symbol: String,
    /// Bytes from its first one.
    pub offset: u64,
}

impl Notation for SymbolOffset {
    const EXPECTED: &'static str =
        "a symbol and an offset such as `__x64_sys_getppid` or `__x64_sys_getppid+0x10`";
    const NAME: &'static str = "SymbolOffset";
    const PATTERN: &'static str = "^[A-Za-z_][A-Za-z0-9_.$]*(\\+(0x[0-9a-f]+|[0-9]+))?$";
}

impl FromStr for SymbolOffset {
    type Err = NotThat;

    fn from_str(text: &str) -> Result<Self, NotThat> {
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
            return Err(NotThat);
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

/// Decimal, or hexadecimal with `0x`; `u64::from_str` alone would also take a sign.
fn number(text: &str) -> Result<u64, NotThat> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(NotThat);
    }
    u64::from_str_radix(digits, radix).map_err(|_| NotThat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation() {
        let place = |symbol: &str, offset| SymbolOffset {
            symbol: symbol.to_owned(),
            offset,
        };
        assert_eq!("spin_loop".parse(), Ok(place("spin_loop", 0)));
        assert_eq!("a.isra.0+0x1f".parse(), Ok(place("a.isra.0", 31)));
        assert_eq!("a+16".parse(), Ok(place("a", 16)));
        for bad in ["", "+1", "a+", "a+0x", "a+-1", "a++1", "a b", "1a", "a+0xg"] {
            assert_eq!(bad.parse::<SymbolOffset>(), Err(NotThat), "{bad}");
        }
        assert_eq!(place("a", 16).to_string(), "a+0x10");
    }
}
