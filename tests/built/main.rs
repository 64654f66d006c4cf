//! Kernels built from source: the good one shows in the lab client's scenarios and the programs nothing but what is known
//! of it, and each deliberately broken one violates its own invariant.
//!
//! In one program, because a bisection has a source tree of its own: each of the two leaves much of a CPU idle.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod base;
mod bisect;
#[path = "../common/mod.rs"]
mod common;
mod mutants;
mod series;
#[path = "../common/source.rs"]
mod source;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by what builds in the workspace of Debian's source, which is one: the others would wait, and their machines slow each other down.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
