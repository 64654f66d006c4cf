//! What a sample interrupted.
//!
//! A tracepoint that fires in the NMI handler samples from there: its kernel chain starts with
//! perf's and the handler's functions, then `exc_nmi`, then the frame of the assembler entry that
//! called it, then the interrupted instruction. On x86-64 (arch/x86/entry/entry_64.S, Linux 7.2)
//! `call exc_nmi` stands in `asm_exc_nmi` for an NMI from user mode, and behind the label
//! `end_repeat_nmi`, which is a symbol of its own, for one from kernel mode. The interrupted
//! registers are unwound to only in the second case: the stack of the first ends at user mode.
//!
//! An event that a counter overflow or a timer raises samples the interrupted registers
//! themselves: there is no entry frame, and the first kernel address is where the sample was taken.

use super::KernelResolver;
use crate::trace::model::Sample;

/// Where a sample was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SamplePlace {
    /// An NMI entry is in the chain.
    pub(super) nmi: bool,
    /// What ran.
    pub(super) at: Interrupted,
}

/// What was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// User mode.
    User,
    /// A kernel function.
    Kernel(String),
    /// The chain was cut short, or has an address without a name.
    Unknown,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Kernel(function) => function,
            Self::Unknown => "?",
        })
    }
}

/// The C part of NMI entry, one of which every in-NMI chain goes through.
const NMI_HANDLERS: [&str; 2] = ["exc_nmi", "fred_exc_nmi"];
/// The assembler part: the one frame between the C part and what was interrupted.
const NMI_ENTRIES: [&str; 4] = ["asm_exc_nmi", "first_nmi", "repeat_nmi", "end_repeat_nmi"];
/// With FRED all events share these entries, so they count only above an NMI handler.
const FRED_ENTRIES: [&str; 2] = ["asm_fred_entrypoint_kernel", "asm_fred_entrypoint_user"];

/// Finds what `sample` interrupted.
pub(super) fn interrupted(sample: &Sample, kernel: KernelResolver<'_>) -> SamplePlace {
    let Some(chain) = sample.chain.as_deref() else {
        let (nmi, at) = (false, Interrupted::Unknown);
        return SamplePlace { nmi, at };
    };
    let frames = sample.kernel_chain();
    let Some(&first) = frames.first() else {
        // Kernel frames are left out only where registers of user mode were sampled.
        let at = if chain.is_empty() {
            Interrupted::Unknown
        } else {
            Interrupted::User
        };
        return SamplePlace { nmi: false, at };
    };
    let mut in_nmi = false;
    let mut callers = frames.iter();
    while let Some(&address) = callers.next() {
        let Some(function) = function(address, kernel) else {
            continue;
        };
        let function = function.as_str();
        let fred = in_nmi && FRED_ENTRIES.contains(&function);
        if fred || NMI_ENTRIES.contains(&function) {
            let at = callers
                .next()
                .map_or(Interrupted::User, |&address| named(address, kernel));
            return SamplePlace { nmi: true, at };
        }
        in_nmi |= NMI_HANDLERS.contains(&function);
    }
    let at = if in_nmi {
        Interrupted::Unknown
    } else {
        named(first, kernel)
    };
    SamplePlace { nmi: in_nmi, at }
}

fn named(address: u64, kernel: KernelResolver<'_>) -> Interrupted {
    function(address, kernel).map_or(Interrupted::Unknown, Interrupted::Kernel)
}

/// The function's name in the source: compilers add `.isra.0`, `.constprop.0`, `.cold` and the
/// like as they see fit.
fn function(address: u64, kernel: KernelResolver<'_>) -> Option<String> {
    let (mut name, _) = kernel(address)?;
    if let Some(suffix) = name.find('.').filter(|&at| at > 0) {
        name.truncate(suffix);
    }
    Some(name)
}
