//! C: cookies: what they look like, and whose they are.

pub(super) mod c1_stability;
pub(super) mod c2_freshness;
pub(super) mod c3_uniqueness;
pub(super) mod c4_format;
pub(super) mod c5_birth;
pub(super) mod c6_order;
pub(super) mod c7_origin;
pub(super) mod lab_log;
