//! Breakpoints and single steps of one vCPU, and traps as bytes in the guest's code.

mod data;
mod hardware;
mod trap;

pub use data::{DataAccess, DataBreakpoint};
pub(crate) use hardware::{
    Cause, DR7_ENABLED, DebugState, MAX_BREAKPOINTS, StepMethod, breakpoints, pass_breakpoint,
};
pub use trap::TrapError;
pub(crate) use trap::{Trap, TrapFit};
