//! The devices that this VMM emulates, all of them behind I/O ports.

pub(crate) mod ports;
pub(crate) mod serial;
