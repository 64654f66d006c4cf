//! Addresses and guest text as they are shown to people.

use unwindlab_abi::message::UserSymbol;

use crate::scenario::KernelSymbols;

/// Names for the addresses of one trace.
#[expect(missing_debug_implementations, reason = "holds a trait object")]
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// The kernel's symbols.
    pub kernel: &'a dyn KernelSymbols,
    /// The workload's.
    pub user: &'a [UserSymbol],
}

impl Names<'_> {
    /// `symbol+0x12`, or the bare address where it has no name.
    #[must_use]
    pub fn name(&self, address: u64) -> String {
        let user = self
            .user
            .iter()
            .find(|symbol| (symbol.start..symbol.end).contains(&address))
            .map(|symbol| (symbol.name.clone(), address - symbol.start));
        match user.or_else(|| self.kernel.resolve(address)) {
            Some((symbol, offset)) => format!("{}+{offset:#x}", printable(&symbol)),
            None => format!("{address:#x}"),
        }
    }
}

/// A guest's text without what could drive a terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
