//! The kernels that unwindlab runs, and what else it needs from a distribution.
//!
//! - [`fetch`]: a kernel by its specification (`stock`, `stock:7.0`, `path:FILE`), as an ELF
//!   vmlinux in the cache, with its symbols;
//! - [`build`](build()): one built from source, with patches and the lab client, likewise;
//! - [`outer_kernel`]: the kernel of the emulated KVM host, with the modules that make /dev/kvm;
//! - [`perf_tool`](perf_tool()): the perf of the distribution, to be run in a guest;
//! - [`qemu`]: the QEMU that emulates it: the system's own, or one in the cache;
//! - [`Symbols`]: names to addresses and back;
//! - [`Lines`]: lines of the source to addresses and back, where a kernel has DWARF.
//!
//! Everything that is downloaded comes from Debian's archive through a private apt root
//! ([`apt`]), is verified by apt, and ends in the [`Cache`]. The system is never changed.

pub mod build;
pub mod cache;
pub mod child;
pub mod debian;
#[cfg(test)]
mod fixtures;
pub mod image;
pub mod kernel;
pub mod progress;
pub mod tools;

pub use build::{BuildError, BuildSpec, Built, Client, Source, build};
pub use cache::Cache;
pub use debian::closure;
pub use debian::outer::{self, OuterError, OuterKernel, outer_kernel};
pub use image::lines::{self, KeptLines, LineError, Lines};
pub use image::symbols::{KallsymsError, Symbols, SymbolsError};
pub use image::text;
pub use kernel::{FetchError, KernelImage, KernelSpec, Origin, SpecError, fetch, list, path};
pub use progress::{Progress, Silent};
pub use tools::perf::{self as perf_tool, PerfTool, PerfToolError, perf_tool};
pub use tools::qemu::{self, Qemu, QemuError, qemu};
