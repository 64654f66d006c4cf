//! Breakpoints and single steps of one vCPU, and traps as bytes in the guest's code.

mod data;
mod hardware;
mod passed;
mod trap;

pub use data::{DataAccess, DataBreakpoint};
pub(crate) use hardware::{
    Cause, DR7_ENABLED, DebugState, MAX_BREAKPOINTS, StepMethod, breakpoints, heed_breakpoint,
    pass_breakpoint,
};
pub(crate) use passed::Passed;
pub use trap::TrapError;
pub(crate) use trap::{Trap, TrapFit};
