//! D: nothing is delivered twice. P: everything goes forward.

pub(super) mod d1_one_walk;
pub(super) mod d3_no_repeat;
pub(super) mod d4_walks;
pub(super) mod lab_log;
pub(super) mod p2_entry_ends;
pub(super) mod p3_user_mode;
pub(super) mod p4_at_once;
pub(super) mod p5_only_that_task;
pub(super) mod p6_again_and_again;
