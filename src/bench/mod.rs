//! Measurements of what docs/specification.md promises, each against its peer in the same KVM host
//! and the same run.
//!
//! A VMM is measured as a process of its own, ours and QEMU alike: the same kernel image, the same
//! initial file system, the same command line, the same moment at which the guest is ready (the
//! agent's first word, through an I/O port). The KVM host carries out one
//! [`Measurement`](unwindlab_engine::plan::measurement::Measurement) at a time; the command alternates between
//! ours and the peer's, so that other load on the machine affects both.
//!
//! ```text
//! rows ──> orders ──> [KVM host: vmm, a process] ──> measured ──> rows ──> report
//! ```

pub mod rows;
pub mod series;
