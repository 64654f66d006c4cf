//! R: requests and callbacks of in-kernel clients, as the lab client's log shows them, and perf's
//! own requests.

pub(super) mod callbacks;
pub(super) mod refusals;
pub(super) mod requests;
