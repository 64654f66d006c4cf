//! Measurements of what docs/specification.md promises, each against its peer in the same KVM host and
//! the same run.
//!
//! A VMM is measured as a process of its own, ours and QEMU alike: the same kernel image, the same initial
//! file system, the same command line, the same moment at which the guest is ready (the agent's first word,
//! by an I/O port). The KVM host carries out one [`Order`](crate::plan::measurement::Order) at a time; the command alternates between
//! ours and the peer's, so that whatever else the machine does hits both.
//!
//! ```text
//! rows ──> orders ──> [KVM host: a VMM's process] ──> figures ──> rows ──> report
//! ```

pub mod carry;
pub mod ours;
pub mod process;
pub mod qemu;
pub mod qmp;
pub mod resident;
pub mod rows;
pub mod series;
