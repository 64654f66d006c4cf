//! What runs where KVM is: a machine, its guest and agent, and what is done with them.
//!
//! The command makes a plan ([`plan`]); a KVM host ([`host`]) carries it out and sends back what
//! happened. On an emulated host the two are different processes of the same binary: all of this
//! crate then runs under emulation, so it is optimised where the command is not.
//!
//! The folders, lowest first. Each uses only what stands above it in this list;
//! `tests/layers.rs` reads the list from here and the imports from the files.
//!
//! - [`text`]: text from outside, fit to print
//! - [`interrupt`]: the user's Ctrl-C
//! - [`qmp`]: QEMU's monitor
//! - [`plan`]: what crosses between the command and the KVM host
//! - [`driver`]: a guest and its agent, driven from outside
//! - [`runner`]: makes trials
//! - [`sweep`]: trials at every instruction of a path, from checkpoints
//! - [`measured`]: VMMs as processes of their own, to be measured
//! - [`host`]: the KVM hosts

pub mod driver;
pub mod host;
pub mod interrupt;
pub mod measured;
pub mod plan;
pub mod qmp;
pub mod runner;
pub mod sweep;
pub mod text;
