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
//!
//! What a user waits for is measured as a user has it: as a command line, of this program or of cargo, in a process of its
//! own ([`command`]).

pub mod against;
pub mod command;
pub mod machine;
pub mod rows;
pub mod series;

/// Names the shape of a record of a figure. The number rises with every change that may break a reader; an added key is no
/// such change.
pub const SCHEMA: &str = "unwindlab.bench/1";
/// How often a figure can be measured.
pub const MOST_ROUNDS: u32 = 1000;
