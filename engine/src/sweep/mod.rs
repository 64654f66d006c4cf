//! Sweeps: one trial for every instruction boundary of a path, from checkpoints.
//!
//! The path begins behind the instruction at which a scenario makes its first request, and ends a
//! few instructions into user mode. It is recorded once, by single steps with interrupts held back.
//! Then one trial for each boundary: the machine is put back, an NMI comes there, and the entry
//! ends. One more entry follows, with the scenario's own request in it, so that what the NMI left
//! behind shows. The trial ends where the entry after that would make its request. Every invariant
//! is checked on every trial.
//!
//! ```text
//! plan ──> [KVM host: guest ─> walk (path) ─> trials] ──> messages ──> verdicts ──> report
//! ```

mod alike;
pub mod engine;
mod error;
mod guest;
mod pairs;
mod printk;
mod start;
mod track;
mod trial;
mod walk;
mod worker;
