//! S: answers show the user stack at the time of the entry.

pub(super) mod lab_log;
pub(super) mod s1_identity;
pub(super) mod s2_no_stale_cache;
pub(super) mod s3_identical;
pub(super) mod s4_no_user_code;
pub(super) mod s5_inline_twin;
