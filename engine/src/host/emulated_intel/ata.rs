//! The second disk of the first channel, by port I/O from user mode: the outer kernel has no driver for it, and needs none.

use std::arch::asm;
use std::io;
use std::time::{Duration, Instant};

use super::mailbox::{SECTOR, Sectors};

/// The channel's registers, and the one that switches its interrupt off.
const DATA: u16 = 0x1f0;
const COUNT: u16 = 0x1f2;
const LBA: [u16; 3] = [0x1f3, 0x1f4, 0x1f5];
const DEVICE: u16 = 0x1f6;
/// Written: the command. Read: the status.
const COMMAND: u16 = 0x1f7;
const CONTROL: u16 = 0x3f6;

const NO_INTERRUPT: u8 = 2;
/// Addresses by sectors; the second disk.
const SECOND: u8 = 0xf0;
const READ: u8 = 0x20;
const WRITE: u8 = 0x30;

const BUSY: u8 = 0x80;
const DATA_READY: u8 = 8;
const FAILED: u8 = 0x21;

/// Most sectors of a command.
const AT_ONCE: usize = 128;
/// Words of a sector.
const WORDS: usize = SECTOR / 2;
/// A disk of Bochs' takes a few milliseconds of the machine's time.
const LIMIT: Duration = Duration::from_secs(10);

/// The disk, as this process alone uses it.
#[derive(Debug)]
pub(super) struct Ata(());

impl Ata {
    /// Gets access to the ports.
    ///
    /// # Errors
    /// Where this process may not have it.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: changes what this thread may do with ports, and no memory.
        match unsafe { libc::iopl(3) } {
            0 => {
                out(CONTROL, NO_INTERRUPT);
                Ok(Self(()))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn command(&mut self, command: u8, first: u32, count: usize) -> io::Result<()> {
        self.wait(0)?;
        let [low, middle, high, top] = first.to_le_bytes();
        out(DEVICE, SECOND | (top & 0xf));
        self.wait(0)?;
        let count = u8::try_from(count).map_err(io::Error::other)?;
        out(COUNT, count);
        for (port, byte) in LBA.into_iter().zip([low, middle, high]) {
            out(port, byte);
        }
        out(COMMAND, command);
        Ok(())
    }

    /// Waits until it is not busy and has these bits.
    fn wait(&mut self, bits: u8) -> io::Result<()> {
        let started = Instant::now();
        loop {
            let status = inb(COMMAND);
            if status & BUSY == 0 {
                if status & FAILED != 0 {
                    return Err(io::Error::other(format!("disk status {status:#x}")));
                }
                if status & bits == bits {
                    return Ok(());
                }
            }
            if started.elapsed() > LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        }
    }
}

impl Sectors for Ata {
    fn read(&mut self, first: u32, into: &mut [u8]) -> io::Result<()> {
        let mut at = first;
        for part in into.chunks_mut(AT_ONCE * SECTOR) {
            let count = part.len() / SECTOR;
            self.command(READ, at, count)?;
            for sector in part.chunks_exact_mut(SECTOR) {
                self.wait(DATA_READY)?;
                // SAFETY: the disk has a sector ready, which goes to `sector`, as long as one.
                unsafe {
                    asm!("rep insw", in("dx") DATA, inout("rdi") sector.as_mut_ptr() => _,
                        inout("rcx") WORDS => _, options(nostack, preserves_flags));
                }
            }
            at += u32::try_from(count).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn write(&mut self, first: u32, from: &[u8]) -> io::Result<()> {
        let mut at = first;
        for part in from.chunks(AT_ONCE * SECTOR) {
            let count = part.len() / SECTOR;
            self.command(WRITE, at, count)?;
            for sector in part.chunks_exact(SECTOR) {
                self.wait(DATA_READY)?;
                // SAFETY: the disk waits for a sector, which comes from `sector`, as long as one.
                unsafe {
                    asm!("rep outsw", in("dx") DATA, inout("rsi") sector.as_ptr() => _,
                        inout("rcx") WORDS => _, options(nostack, preserves_flags, readonly));
                }
            }
            at += u32::try_from(count).map_err(io::Error::other)?;
        }
        self.wait(0)
    }
}

fn out(port: u16, byte: u8) {
    // SAFETY: a port of the disk's, to which `Ata::open` got access; no memory is touched.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack, preserves_flags))
    }
}

fn inb(port: u16) -> u8 {
    let byte;
    // SAFETY: as in `out`.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") byte, options(nomem, nostack, preserves_flags))
    }
    byte
}
