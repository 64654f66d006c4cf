//! Namespaces of a confined process's own, without capabilities in them.

use std::ffi::CString;
use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits, unshare_unsafe,
};

/// What [`Prepared::enter`] needs, made before the fork. Never freed by the child.
pub(super) struct Prepared {
    uids: ManuallyDrop<String>,
    gids: ManuallyDrop<String>,
    writable: ManuallyDrop<Vec<CString>>,
}

pub(super) fn prepare(writable: &[PathBuf]) -> io::Result<Prepared> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let writable: io::Result<Vec<CString>> = writable
        .iter()
        .map(|path| Ok(CString::new(super::real(path)?.as_os_str().as_bytes())?))
        .collect();
    Ok(Prepared {
        uids: ManuallyDrop::new(format!("{uid} {uid} 1")),
        gids: ManuallyDrop::new(format!("{gid} {gid} 1")),
        writable: ManuallyDrop::new(writable?),
    })
}

impl Prepared {
    /// Between fork and exec: system calls only.
    pub fn enter(&self) -> io::Result<()> {
        let own = UnshareFlags::NEWUSER
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC;
        // SAFETY: of the flags, only FILES could harm, by closing what other threads rely on.
        unsafe { unshare_unsafe(own)? };
        write(c"/proc/self/setgroups", b"deny")?;
        write(c"/proc/self/uid_map", self.uids.as_bytes())?;
        write(c"/proc/self/gid_map", self.gids.as_bytes())?;
        self.mounts()?;
        no_capabilities()
    }

    /// Every mount becomes read-only, but those folders.
    fn mounts(&self) -> io::Result<()> {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change(c"/", private)?;
        for folder in self.writable.iter() {
            mount_bind(folder.as_c_str(), folder.as_c_str())?;
        }
        set_read_only(c"/", true, libc::AT_RECURSIVE)?;
        for folder in self.writable.iter() {
            set_read_only(folder, false, 0)?;
        }
        Ok(())
    }
}

fn write(path: &std::ffi::CStr, content: &[u8]) -> io::Result<()> {
    let file = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, content)?;
    Ok(())
}

fn set_read_only(path: &std::ffi::CStr, on: bool, flags: libc::c_int) -> io::Result<()> {
    let read_only = libc::MOUNT_ATTR_RDONLY;
    let attributes = libc::mount_attr {
        attr_set: if on { read_only } else { 0 },
        attr_clr: if on { 0 } else { read_only },
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path and structure live during the call, which only reads them; the size is the structure's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Root in its own namespace gets none by exec either.
fn no_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // The kernel does not know the last ones.
        if remove_capability_from_bounding_set(one).is_err() {
            break;
        }
    }
    set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED,
    )?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, none)?)
}
