//! What the guest finds behind I/O ports and addresses without RAM.

pub(crate) mod ports;
pub(crate) mod serial;
