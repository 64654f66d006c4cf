//! Programs of Debian's that are run, unpacked into the cache with their libraries, and the one that
//! is made with them; and the C programs that show findings.

mod archive;
pub mod binutils;
pub mod bochs;
pub mod c_program;
pub mod perf;
pub mod qemu;
pub mod reproducer;

pub use archive::ArchiveError;
