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

pub mod apt;
pub mod build;
pub mod cache;
pub mod child;
pub mod closure;
pub mod deb;
pub mod fetch;
#[cfg(test)]
mod fixtures;
pub mod image;
mod kallsyms;
pub mod lines;
pub mod modules;
pub mod outer;
pub mod perf_tool;
pub mod progress;
pub mod qemu;
pub mod stock;
pub mod symbols;
pub mod text;
pub mod version;

pub use build::{BuildError, BuildSpec, Built, Client, Source, build};
pub use cache::Cache;
pub use fetch::{FetchError, KernelImage, Origin, fetch, list, path};
pub use kallsyms::KallsymsError;
pub use lines::{KeptLines, LineError, Lines};
pub use outer::{OuterError, OuterKernel, outer_kernel};
pub use perf_tool::{PerfTool, PerfToolError, perf_tool};
pub use progress::{Progress, Silent};
pub use qemu::{Qemu, QemuError, qemu};
pub use stock::{KernelSpec, SpecError};
pub use symbols::{Symbols, SymbolsError};
