//! N: unwinding in user mode, by a signal with a nonce. What is violated here is that design, not the
//! kernel.

#[cfg(test)]
mod counts_tests;
mod designs;
pub(super) mod n1_once;
pub(super) mod n2_before_user_code;
pub(super) mod n3_truth;
pub(super) mod n4_reuse;
pub(super) mod n5_behaviour;
mod pairs;
mod signals;
#[cfg(test)]
mod tests;
mod truth;

pub use designs::{Answers, Designs};
pub use signals::Signals;
pub use truth::NonceStacks;
