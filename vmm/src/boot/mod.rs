//! Entering a kernel without firmware: the layout of guest memory, and the code that writes it.
//!
//! | guest-physical | contents |
//! |---|---|
//! | 0x500 | GDT of the first vCPU |
//! | 0x7000 | boot parameters ("zero page") |
//! | 0x8ff0 | the first vCPU's stack, growing down |
//! | 0x9000 | page tables: the first 4 GiB, identity-mapped |
//! | 0x20000 | command line |
//! | 0xe0000 | ACPI tables, reserved in the memory map |
//! | 0xf0000 | MP table, for kernels without ACPI |
//! | 0xffff0 | the reset vector, which a kernel enters to reboot: requests a reset by a port |
//! | 0x100000 up | the kernel, at the addresses of its ELF headers; the initrd at the end of RAM |

use std::borrow::Cow;
use std::fmt;
use std::fs::File;

use crate::memory::{AccessError, Memory};

mod acpi;
mod elf;
mod gdt;
mod mptable;
mod paging;
mod params;

pub use elf::KernelError;
pub(crate) use gdt::BootState;
use gdt::boot_state;
pub use params::ParamsError;

/// The GDT.
const GDT: u64 = 0x500;
/// The zero page.
const ZERO_PAGE: u64 = 0x7000;
/// Top of the stack.
const STACK: u64 = 0x8ff0;
/// The root of the page tables; the others follow.
const PAGE_TABLES: u64 = 0x9000;
/// The command line.
const CMDLINE: u32 = 0x2_0000;
/// End of the conventional memory.
const LOW_RAM_END: u64 = 0x9_fc00;
/// The ACPI tables, and the end of the area that is reserved for them.
const ACPI: u64 = 0xe_0000;
const ACPI_END: u64 = MP_TABLE;
/// The MP table: at the start of what was the BIOS, where kernels look.
const MP_TABLE: u64 = 0xf_0000;
/// Where a CPU starts in 16-bit code, and a kernel jumps that has no other way to reboot.
const RESET_VECTOR: u64 = 0xf_fff0;
/// `mov al, 0xfe; out 0x64, al; hlt; jmp` back to the `hlt`.
const RESET_CODE: [u8; 7] = [0xb0, 0xfe, 0xe6, 0x64, 0xf4, 0xeb, 0xfd];
/// Start of the RAM above 1 MiB.
const HIGH_RAM: u64 = 0x10_0000;

/// A command line that boots a distribution's kernel fast and nearly silently on a machine of this
/// crate. Append further options: the last one wins.
///
/// | option | reason |
/// |---|---|
/// | `console=ttyS0` | the only console |
/// | `quiet loglevel=5` | each character costs an exit; warnings and errors are shown |
/// | `panic=-1` | a panic ends in [`Stop::Reset`](crate::Stop::Reset), not in an endless loop |
/// | `pci=off` | the machine has no PCI |
/// | `tsc=reliable` | no clocksource watchdog: in Linux 7.2 it can hang a boot with several CPUs |
/// | `cryptomgr.notests` | self-tests of ciphers take a quarter of a distribution kernel's boot |
///
/// `nokaslr` is not needed: an ELF kernel entered directly runs where it was linked, and moves its
/// other areas only if the boot loader allows it, which this one does not.
///
/// The hang, seen with 7.2.13 in about one of a hundred boots: `watchdog_check_skew`
/// (kernel/time/clocksource.c) waits for another CPU with interrupts off, until a timeout by a
/// clock that counts jiffies. The other CPU waits for it in `multi_cpu_stop`, with interrupts off
/// too, so no jiffy ever passes.
///
/// The guest's clock is kvmclock. It agrees across vCPUs only if the host's own clock is its TSC;
/// a host that is itself emulated needs `tsc=reliable` for that.
pub const LINUX_CMDLINE: &str =
    "console=ttyS0 quiet loglevel=5 panic=-1 pci=off tsc=reliable cryptomgr.notests";

/// What to boot.
#[derive(Clone)]
pub enum Kernel<'a> {
    /// A Linux kernel as an ELF file (`vmlinux`), or another ELF file to be entered at its
    /// physical entry address in 64-bit mode, as the Linux boot protocol defines it.
    Elf(Cow<'a, [u8]>),
    /// The same in a file, which is read straight into the guest's memory without another copy.
    File(&'a File),
    /// Bytes to copy to guest-physical `address` and to enter at the first, in the same state.
    Flat {
        /// 1 MiB or above.
        address: u64,
        /// The code.
        code: Cow<'a, [u8]>,
    },
}

/// Leaves out the code, which may have many megabytes.
impl fmt::Debug for Kernel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elf(bytes) => write!(f, "Elf({} bytes)", bytes.len()),
            Self::File(file) => write!(f, "{file:?}"),
            Self::Flat { address, code } => {
                write!(f, "Flat({} bytes at {address:#x})", code.len())
            }
        }
    }
}

/// Why a kernel could not be prepared to boot.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Command line or initrd.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// The structures below 1 MiB do not fit: a bug of this crate.
    #[error("failed to write the boot structures: {0}")]
    Write(#[from] AccessError),
}

/// Writes all that a kernel needs into `memory`. Returns the first vCPU's registers.
pub(crate) fn prepare(
    memory: &Memory,
    kernel: &Kernel<'_>,
    initrd: &[u8],
    cmdline: &str,
    vcpus: u8,
) -> Result<BootState, BootError> {
    let image = elf::load(memory, kernel)?;
    let rsdp = acpi::write(memory, vcpus)?;
    mptable::write(memory, vcpus)?;
    params::write(
        memory,
        &params::Params {
            initrd,
            cmdline,
            rsdp,
            kernel_end: image.end,
        },
    )?;
    memory.write(RESET_VECTOR, &RESET_CODE)?;
    paging::write(memory)?;
    gdt::write(memory)?;
    Ok(boot_state(image.entry))
}
