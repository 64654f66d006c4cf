//! The system calls that a confined process may not make: seccomp.

use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// What a compiler, a linker, a shell and `make` have no use for: the network, other processes, and most of what
/// only root should reach.
const DENIED: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
];

/// The same calls once more, under the numbers of the x32 ABI.
const X32: i64 = 0x4000_0000;

pub(super) fn prepare() -> io::Result<BpfProgram> {
    let rules = DENIED
        .iter()
        .flat_map(|call| [(*call, Vec::new()), (call | X32, Vec::new())])
        .collect();
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    // Of another architecture (`int $0x80`), the filter kills.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, TargetArch::x86_64);
    let program = filter.and_then(BpfProgram::try_from);
    program.map_err(io::Error::other)
}

/// From here on, for this thread and its children.
pub(super) fn restrict(program: &BpfProgram) -> io::Result<()> {
    apply_filter(program).map_err(|_| io::ErrorKind::Unsupported.into())
}
