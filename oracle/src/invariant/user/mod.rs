//! U: how the unwinder reads user stacks.

mod known_leaf;
pub(super) mod registers;
pub(super) mod u1_ends;
pub(super) mod u2_stops;
pub(super) mod u3_no_signal;
pub(super) mod u4_missing_pages;
pub(super) mod u5_word_size;
pub(super) mod u6_frame_zero;
pub(super) mod u7_every_instruction;
