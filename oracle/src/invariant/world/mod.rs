//! W: the machine's own signs: console, rings, injections.

pub(super) mod w0_console;
pub(super) mod w1_rings;
pub(super) mod w2_exact;
