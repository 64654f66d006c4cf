//! A: perf's ABI: markers, layout, receivers, limits.

pub(super) mod a1_marker;
pub(super) mod a2_layout;
pub(super) mod a3_receivers;
pub(super) mod a4_max_stack;
pub(super) mod a5_counted;
pub(super) mod a7_own_buffer;
pub(super) mod a8_contexts;
