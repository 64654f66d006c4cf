//! Bochs' configuration, and the start of its process.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, PipeReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use unwindlab_guest_kernel::child::{die_with_us, inherit};
use unwindlab_guest_kernel::confine::confine;

use super::mailbox::Outside;
use super::{
    CPUS, END_WORD, LIMITS, MAILBOX_WORD, MEMORY_MIB, OuterMachine, RATE, boot_disk, carrier,
};
use crate::host::emulated::qemu::{CMDLINE, inherited_path};
use crate::host::process::HostProcess;
use crate::interrupt::Interrupt;

/// Starts Bochs. It may read its own files, write nothing, and has no network and no privileges.
pub(super) fn spawn(outer: &OuterMachine, interrupt: &Interrupt) -> io::Result<HostProcess> {
    let disk = boot_disk(outer)?;
    let mailbox = Outside::new()?;
    let (console, console_end) = io::pipe()?;
    let (terminal, terminal_end) = terminal()?;
    let configuration = memfd("unwindlab-bochsrc")?;
    let debugger = memfd("unwindlab-bochs-debugger")?;
    // Debian's Bochs has a debugger, which waits for orders: to continue.
    (&debugger).write_all(b"c\n")?;
    (&configuration).write_all(
        bochsrc(&Parts {
            bios: &outer.bochs.bios(),
            vga_bios: &outer.bochs.vga_bios(),
            disk: &inherited_path(disk.as_fd()),
            mailbox: &inherited_path(mailbox.file().as_fd()),
            console: &inherited_path(console_end.as_fd()),
        })?
        .as_bytes(),
    )?;
    let inherited = [
        disk.as_fd(),
        mailbox.file().as_fd(),
        console_end.as_fd(),
        configuration.as_fd(),
        debugger.as_fd(),
    ];
    let errors = console_end.try_clone()?;
    let child = execute(
        outer,
        &inherited,
        [configuration.as_fd(), debugger.as_fd()],
        &terminal_end,
        errors.into(),
    )?;
    let (stream, carried) = UnixStream::pair()?;
    let console: PipeReader = console;
    let host = HostProcess::new(child, stream, console, interrupt)?.with_limits(LIMITS);
    carrier::carry(mailbox, carried, File::from(terminal))?;
    Ok(host)
}

fn execute(
    outer: &OuterMachine,
    inherited: &[BorrowedFd<'_>],
    [configuration, debugger]: [BorrowedFd<'_>; 2],
    terminal: &OwnedFd,
    errors: OwnedFd,
) -> io::Result<Child> {
    let mut command = outer.bochs.command();
    inherit(&mut command, inherited);
    command
        .args(["-q", "-f", &inherited_path(configuration)])
        .args(["-rc", &inherited_path(debugger)])
        // On a terminal it would wait for a key whenever the machine is idle.
        .stdin(Stdio::null())
        .stdout(terminal.try_clone()?)
        .stderr(errors);
    confine(&mut command, &outer.bochs.files(), "Bochs").map_err(io::Error::other)?;
    die_with_us(&mut command);
    command.spawn()
}

/// The disk that it boots.
fn boot_disk(outer: &OuterMachine) -> io::Result<File> {
    let mut disk = memfd("unwindlab-disk")?;
    let kernel = fs::read(&outer.vmlinux)?;
    let packed = outer.initramfs.packed()?;
    let mut initramfs = File::from(packed.try_clone_to_owned()?);
    let cmdline = format!("{CMDLINE} {END_WORD} {MAILBOX_WORD}");
    let memory = u64::from(MEMORY_MIB) << 20;
    boot_disk::write(&mut disk, &kernel, &mut initramfs, &cmdline, memory)
        .map_err(io::Error::other)?;
    Ok(disk)
}

/// Both ends of a pseudoterminal: ours, and that of Bochs, whose display wants one.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let other = ioctl_tiocgptpeer(&ours, flags)?;
    Ok((ours, other))
}

fn memfd(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// Files in Bochs' configuration.
struct Parts<'a> {
    bios: &'a Path,
    vga_bios: &'a Path,
    disk: &'a str,
    mailbox: &'a str,
    console: &'a str,
}

/// The configuration. `clock: sync=none`: a second of the machine's is as many instructions of each CPU as [`RATE`] says, whatever they
/// take. `vga: realtime=0`: so it is for the display's timers.
fn bochsrc(parts: &Parts<'_>) -> io::Result<String> {
    let Parts {
        disk,
        mailbox,
        console,
        ..
    } = parts;
    let (bios, vga_bios) = (quoted(parts.bios)?, quoted(parts.vga_bios)?);
    let memory = MEMORY_MIB;
    Ok(format!(
        "config_interface: textconfig\n\
         display_library: term\n\
         memory: guest={memory}, host={memory}\n\
         cpu: model=corei7_skylake_x, count={CPUS}, ips={RATE}, ignore_bad_msrs=1, reset_on_triple_fault=0\n\
         clock: sync=none, time0=946681200\n\
         vga: realtime=0\n\
         romimage: file={bios}, options=fastboot\n\
         vgaromimage: file={vga_bios}\n\
         com1: enabled=1, mode=file, dev={console}\n\
         ata0-master: type=disk, path={disk}, mode=flat, cylinders=0\n\
         ata0-slave: type=disk, path={mailbox}, mode=flat, cylinders=0\n\
         boot: disk\n\
         sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy\n\
         log: {console}\n\
         debug: action=ignore\n\
         info: action=ignore\n\
         error: action=ignore\n\
         panic: action=fatal\n"
    ))
}

/// A path as the configuration can have it.
fn quoted(path: &Path) -> io::Result<String> {
    let text = path.to_str().filter(|it| !it.contains(['"', '\n', '$']));
    let text = text.ok_or_else(|| refused(&path.display()))?;
    Ok(format!("\"{text}\""))
}

fn refused(path: &dyn Display) -> io::Error {
    io::Error::other(format!("Bochs' configuration cannot name {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_add_to_the_configuration() {
        assert_eq!(quoted(Path::new("/a b/c")).unwrap(), "\"/a b/c\"");
        assert!(quoted(Path::new("/a\"\nmegs: 1")).is_err());
        assert!(quoted(Path::new("/a/$HOME")).is_err());
    }

    #[test]
    fn what_is_written_to_the_terminal_arrives() {
        use std::io::Read as _;
        let (ours, other) = terminal().unwrap();
        File::from(other).write_all(b"x").unwrap();
        let mut read = [0];
        File::from(ours).read_exact(&mut read).unwrap();
        assert_eq!(&read, b"x");
    }
}
