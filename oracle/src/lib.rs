//! What the tracers of a kernel with deferred user-space unwinding wrote, and what must hold of it.
//!
//! [`trace`] turns the bytes of their ring buffers into ordered events; [`invariant`] judges the events. No KVM, no
//! files, no network: whoever has the bytes can ask.

pub mod invariant;
pub mod trace;
