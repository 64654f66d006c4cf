//! A guest and its agent, driven from outside: what trials and sweeps have in common.

pub mod agent;
pub mod cpio;
mod guest_memory;
pub mod session;
pub mod vcpu;
pub mod watch;
