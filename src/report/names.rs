//! Addresses as text: symbol and offset.

use unwindlab_abi::message::UserSymbol;

use unwindlab_engine::text::printable;
use unwindlab_oracle::trace::Trace;
use unwindlab_scenario::KernelSymbols;

/// Names for the addresses of one trace.
#[expect(missing_debug_implementations, reason = "holds a trait object")]
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// The kernel's symbols.
    pub kernel: &'a dyn KernelSymbols,
    /// The workload's symbols.
    pub user: &'a [UserSymbol],
}

impl<'a> Names<'a> {
    /// For what a trial recorded, if there is a trace of it.
    #[must_use]
    pub fn of(kernel: &'a dyn KernelSymbols, trace: Option<&'a Trace>) -> Self {
        let user = trace.map(|trace| trace.user_symbols.as_slice());
        Self {
            kernel,
            user: user.unwrap_or_default(),
        }
    }

    /// `symbol+0x12`, or the address if no symbol contains it.
    #[must_use]
    pub fn name(&self, address: u64) -> String {
        let user = self
            .user
            .iter()
            .filter(|symbol| (symbol.start..symbol.end).contains(&address))
            // They overlap: the innermost starts last.
            .max_by_key(|symbol| symbol.start)
            .map(|symbol| (symbol.name.clone(), address - symbol.start));
        match user.or_else(|| self.kernel.resolve(address)) {
            Some((symbol, offset)) => format!("{}+{offset:#x}", printable(&symbol)),
            None => format!("{address:#x}"),
        }
    }
}
