//! Names of kernel addresses, where whoever judges has the kernel's symbols.

use crate::invariant::limit::step;
use crate::trace::canonical::KernelResolver;

/// The kernel's symbols, or none.
#[derive(Clone, Copy, Default)]
pub(crate) struct KernelNames<'t>(Option<KernelResolver<'t>>);

impl std::fmt::Debug for KernelNames<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = self.0.map_or("unknown", |_| "known");
        out.debug_tuple("KernelNames").field(&known).finish()
    }
}

impl<'t> KernelNames<'t> {
    pub const fn new(resolve: KernelResolver<'t>) -> Self {
        Self(Some(resolve))
    }

    /// The function that holds a kernel address, and the offset in it.
    pub fn place(&self, address: u64) -> Option<(String, u64)> {
        step();
        self.0?(address)
    }

    /// Whether no symbol covers a kernel address, as far as the symbols are known.
    pub fn none_covers(&self, address: u64) -> bool {
        self.0.is_some_and(|resolve| resolve(address).is_none())
    }
}
