//! Choosing and starting the KVM host, and what is put into the machines.

pub mod agent;
pub mod cpio;
