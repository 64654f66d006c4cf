//! Names for user addresses, from the symbols that the agent announced.

use unwindlab_abi::message::UserSymbol;

/// Symbols in order of address.
#[derive(Debug, Clone)]
pub struct UserSymbols<'a> {
    /// By start; of equal starts the longer one first, so that the innermost comes last.
    sorted: Vec<&'a UserSymbol>,
}

impl<'a> UserSymbols<'a> {
    /// Takes the symbols in any order.
    #[must_use]
    pub fn new(symbols: &'a [UserSymbol]) -> Self {
        let mut sorted: Vec<_> = symbols.iter().collect();
        sorted.sort_by_key(|symbol| (symbol.start, std::cmp::Reverse(symbol.end), &symbol.name));
        Self { sorted }
    }

    /// The innermost symbol that holds `address`, and the offset in it. A symbol without length
    /// is a label and holds its own address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&'a str, u64)> {
        let after = self
            .sorted
            .partition_point(|symbol| symbol.start <= address);
        let before = self.sorted.get(..after)?;
        let holds = |symbol: &&&UserSymbol| {
            address < symbol.end || (address == symbol.start && symbol.end <= symbol.start)
        };
        let symbol = before.iter().rev().find(holds)?;
        Some((&symbol.name, address - symbol.start))
    }

    /// As [`find`](Self::find), for a return address: it may be the first one after a function
    /// that ends in a call, and still belongs to it.
    #[must_use]
    pub fn find_return(&self, address: u64) -> Option<(&'a str, u64)> {
        let (name, offset) = self.find(address.checked_sub(1)?)?;
        Some((name, offset + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, start: u64, end: u64) -> UserSymbol {
        let name = name.to_owned();
        UserSymbol { name, start, end }
    }

    #[test]
    fn finds_the_innermost_symbol() {
        let symbols = [
            symbol("leaf", 0x100, 0x200),
            symbol("return", 0x110, 0x110),
            symbol("root", 0x200, 0x240),
            symbol("loop", 0x120, 0x130),
        ];
        let symbols = UserSymbols::new(&symbols);
        assert_eq!(symbols.find(0xff), None);
        assert_eq!(symbols.find(0x100), Some(("leaf", 0)));
        assert_eq!(symbols.find(0x110), Some(("return", 0)));
        assert_eq!(symbols.find(0x111), Some(("leaf", 0x11)));
        assert_eq!(symbols.find(0x12f), Some(("loop", 0xf)));
        assert_eq!(symbols.find(0x130), Some(("leaf", 0x30)));
        assert_eq!(symbols.find(0x200), Some(("root", 0)));
        assert_eq!(symbols.find_return(0x200), Some(("leaf", 0x100)));
        assert_eq!(symbols.find_return(0x240), Some(("root", 0x40)));
        assert_eq!(symbols.find_return(0x241), None);
        assert_eq!(symbols.find(u64::MAX), None);
        assert_eq!(symbols.find_return(0), None);
    }
}
