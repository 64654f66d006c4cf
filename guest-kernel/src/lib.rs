//! The kernels that unwindlab runs, and the programs that it takes from Debian.
//!
//! - [`fetch`](fetch()) gets a kernel by its specification (`stock`, `stock:7.0`, `path:FILE`): an
//!   ELF vmlinux in the cache, with its symbols;
//! - [`build`](build()) builds one from source, with patches and the lab client;
//! - [`outer_kernel`] gets the kernel of the emulated KVM host, with the modules for /dev/kvm;
//! - [`perf_tool`](perf_tool()) gets Debian's perf, which runs in a guest;
//! - [`qemu`](qemu()) finds the system's QEMU, or gets Debian's; [`bochs`](bochs()) gets Debian's Bochs;
//! - [`Symbols`] translates names to addresses and back;
//! - [`Lines`] translates source lines to addresses and back, for kernels with DWARF.
//!
//! All downloads come from Debian's archive through a private apt root (`debian::apt`), are
//! verified by apt, and end in the [`Cache`]. The system is never changed.
//!
//! The folders, each of which uses only those above it:
//!
//! - `zstd`: streams of frames;
//! - `progress`: who is told what is done, and says when to stop;
//! - `child`: processes that end with this one;
//! - `confine`: what they may do;
//! - `input`: files that the user names, or that strangers made;
//! - `unnamed`: files that are complete or absent;
//! - `cache`: the folder in which everything is kept;
//! - `saved`: states of outer machines;
//! - `image`: what is in a kernel's image: its ELF, symbols and lines;
//! - `debian`: apt, packages, and the kernels in them;
//! - `store`: files that machines share;
//! - `kernel`: kernels in the cache;
//! - `build`: kernels from source;
//! - `tools`: QEMU, Bochs, perf, binutils, and a program without frame pointers.

pub mod build;
mod cache;
pub mod child;
pub mod confine;
mod debian;
pub mod image;
pub mod input;
mod kernel;
mod progress;
mod saved;
mod store;
mod tools;
pub mod unnamed;
mod zstd;

pub use build::{BuildError, BuildSpec, Built, Client, Source, build};
pub use cache::{CACHE_VARIABLE, Cache, CacheError, Unfit, Verified, next_data};
pub use debian::closure;
pub use debian::deb::{self, DebError};
pub use debian::outer::{self, OuterError, OuterKernel, outer_kernel};
pub use image::lines::{self, KeptLines, LineError, Lines};
pub use image::symbols::{KallsymsError, Symbols, SymbolsError};
pub use image::text;
pub use image::types::{self, LayoutError, Types};
pub use kernel::{
    FetchError, KernelImage, KernelSpec, Origin, SpecError, fetch, list, path, remove,
};
pub use progress::{Progress, Silent};
pub use saved::{AboutMachine, Pruned, Room, SavedMachine, SavedMachines};
pub use store::{STORE_VARIABLE, StoreError};
pub use tools::ArchiveError;
pub use tools::binutils::{self, Binutils};
pub use tools::bochs::{self, Bochs, bochs};
pub use tools::c_program::{CFunction, CProgram, CProgramError, c_program};
pub use tools::perf::{self as perf_tool, PerfTool, perf_tool};
pub use tools::qemu::{self, Qemu, QemuError, qemu};
pub use tools::reproducer;
