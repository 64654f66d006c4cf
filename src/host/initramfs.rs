//! The outer machine's initramfs: this binary, the KVM modules, the kernels under test.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use super::cpio;

/// Folder of the kernels under test, each named by its content hash.
pub const KERNELS: &str = "/kernels";
/// File that lists the modules to load, a path a line, in order.
pub const MODULE_ORDER: &str = "/modules/order";

