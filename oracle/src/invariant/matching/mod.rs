//! M: which answer belongs to which request.

pub(super) mod lab_log;
pub(super) mod m1_completeness;
pub(super) mod m2_once;
pub(super) mod m3_soundness;
pub(super) mod m4_identity;
pub(super) mod m5_later;
pub(super) mod m6_place;
pub(super) mod m7_inline;
