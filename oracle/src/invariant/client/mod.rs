//! R: requests and callbacks of in-kernel clients, as the lab client's log shows them.

pub(super) mod callbacks;
pub(super) mod requests;
