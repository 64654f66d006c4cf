//! Programs of Debian's that are run, unpacked into the cache with their libraries.

pub mod binutils;
pub mod perf;
pub mod qemu;
