//! Debian's archive: a private apt, packages, and the kernels in them.

pub mod apt;
pub mod closure;
pub mod deb;
pub mod modules;
pub mod outer;
pub(crate) mod stock;
pub mod version;
