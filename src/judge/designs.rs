//! What both designs of unwinding made of the samples of a trace.

use super::known::entry_code;
use unwindlab_oracle::invariant::{Designs, Evidence};
use unwindlab_oracle::trace::Trace;
use unwindlab_scenario::KernelSymbols;

/// Counts them, with what the kernel's code says of samples in system calls; `None` if requests and samples are not in
/// pairs.
#[must_use]
pub fn designs(trace: &Trace, symbols: &dyn KernelSymbols) -> Option<Designs> {
    let resolve = |address| symbols.resolve(address);
    let code = entry_code(symbols);
    Designs::of(&Evidence::new(trace).named(&resolve).knowing(&code))
}
