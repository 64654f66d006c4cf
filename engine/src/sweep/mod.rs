//! Sweeps: one trial for every instruction boundary of a path, from checkpoints.
//!
//! The path begins behind the instruction at which a scenario makes its first request, at an
//! interrupt or NMI in user mode, or at the last user instruction before an entry. It ends a few
//! instructions into user mode, or with the last instruction of a task that ends. It is recorded
//! once, by single steps with interrupts held back; while other tasks run on its vCPU, nothing is.
//! Then one trial for each boundary: the machine is put back, an NMI comes there, and the entry
//! ends. One more entry follows, with the scenario's own request in it, so that what the NMI left
//! behind shows. The trial ends where the entry after that would make its request. Every invariant
//! is checked on every trial.
//!
//! ```text
//! plan ──> [KVM host: guest ─> walk (path) ─> trials] ──> messages ──> verdicts ──> report
//! ```

mod alike;
mod clock;
pub mod engine;
mod entry;
mod error;
mod follow;
mod guest;
mod local;
mod pairs;
mod passing;
pub mod printk;
mod progress;
mod start;
mod teller;
mod track;
mod trial;
mod tries;
mod user;
mod walk;
mod worker;
