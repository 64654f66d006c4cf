//! What each BPF program needs of the kernel: the id of a kernel function, and the memory of its maps.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use aya::Btf;
use aya_obj::btf::BtfKind;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The programs' licence: some kernel functions and helpers want one that goes with the GPL.
pub(crate) const LICENSE: &[u8] = b"Dual MIT/GPL\0";

/// Why a kernel function has no id.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// The kernel has no type information.
    #[error("this kernel has no BTF: {0}")]
    NoBtf(#[source] aya::BtfError),
    /// The kernel lacks the function.
    #[error("this kernel has no {0}: {1}")]
    Missing(&'static str, #[source] aya::BtfError),
    /// No instruction can name it.
    #[error("the id {1} of {0} does not fit an instruction")]
    Id(&'static str, u32),
}

impl FunctionError {
    /// Whether the kernel lacks something, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::NoBtf(_) | Self::Missing(..))
    }
}

/// The id of a kernel function in the kernel's BTF, as an instruction names it. Needs `/sys`.
pub(crate) fn function(name: &'static str) -> Result<i32, FunctionError> {
    let btf = Btf::from_sys_fs().map_err(FunctionError::NoBtf)?;
    let id = btf.id_by_type_name_kind(name, BtfKind::Func);
    let id = id.map_err(|error| FunctionError::Missing(name, error))?;
    i32::try_from(id).map_err(|_| FunctionError::Id(name, id))
}

/// Maps a map's memory for as long as the agent runs.
pub(crate) fn memory_of(
    map: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    access: ProtFlags,
) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new mapping at an address the kernel chooses.
    let start = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, map, offset) };
    NonNull::new(start?.cast()).ok_or(Errno::NOMEM)
}
