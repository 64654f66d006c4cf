//! Boot parameters: memory map, command line, initrd, where ACPI starts
//! (Documentation/arch/x86/boot.rst and zero-page.rst).

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::ByteValued;

use super::{ACPI, CMDLINE, HIGH_RAM, LOW_RAM_END, ZERO_PAGE};
use crate::memory::{AccessError, HIGH_START, LOW_END, Memory};

/// The longest command line an x86 kernel reads, its end mark included (COMMAND_LINE_SIZE).
pub const MAX_CMDLINE: usize = 2048;

const BOOT_FLAG: u16 = 0xaa55;
/// "HdrS".
const HEADER: u32 = 0x5372_6448;
/// A boot loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xff;
/// Boot protocol 2.15, the first with 64-bit command line and initrd in wide use.
const VERSION: u16 = 0x20f;
/// The highest address an initrd may have without the 64-bit fields (initrd_addr_max).
const INITRD_END: u64 = 0x8000_0000;

const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// Why boot parameters cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ParamsError {
    /// Too long.
    #[error("the kernel command line has {len} bytes, a kernel reads {}: shorten it", MAX_CMDLINE - 1)]
    CmdlineTooLong {
        /// How long.
        len: usize,
    },
    /// It would end early.
    #[error("the kernel command line has a NUL byte in it")]
    CmdlineNul,
    /// No room.
    #[error("no room for an initrd of {size} bytes after the kernel: give the guest more memory")]
    InitrdTooBig {
        /// How big.
        size: usize,
    },
    /// What lies below 1 MiB does not fit; a bug of this crate.
    #[error("failed to write the boot parameters: {0}")]
    Write(#[from] AccessError),
}

/// What goes into the boot parameters.
#[derive(Debug)]
pub(super) struct Params<'a> {
    pub initrd: &'a [u8],
    pub cmdline: &'a str,
    /// Guest-physical address of the ACPI root pointer.
    pub rsdp: u64,
    /// First address after the kernel.
    pub kernel_end: u64,
}

/// Writes the zero page and all it points to.
pub(super) fn write(memory: &Memory, params: &Params<'_>) -> Result<(), ParamsError> {
    let mut zero_page = boot_params {
        acpi_rsdp_addr: params.rsdp,
        ..Default::default()
    };
    let header = &mut zero_page.hdr;
    header.boot_flag = BOOT_FLAG;
    header.header = HEADER;
    header.version = VERSION;
    header.type_of_loader = LOADER_UNDEFINED;
    header.cmd_line_ptr = write_cmdline(memory, params.cmdline)?;
    (header.ramdisk_image, header.ramdisk_size) = write_initrd(memory, params)?;
    let map = memory_map(memory.size());
    for (slot, entry) in zero_page.e820_table.iter_mut().zip(map) {
        *slot = entry;
        zero_page.e820_entries += 1;
    }
    memory.write(ZERO_PAGE, zero_page.as_slice())?;
    Ok(())
}

/// Gives the command line's address.
fn write_cmdline(memory: &Memory, cmdline: &str) -> Result<u32, ParamsError> {
    if cmdline.len() >= MAX_CMDLINE {
        return Err(ParamsError::CmdlineTooLong { len: cmdline.len() });
    }
    if cmdline.contains('\0') {
        return Err(ParamsError::CmdlineNul);
    }
    // Guest memory is zeroed: the end mark is there.
    memory.write(u64::from(CMDLINE), cmdline.as_bytes())?;
    Ok(CMDLINE)
}

/// Puts the initrd as high as it may go, at a page's start; gives address and size.
fn write_initrd(memory: &Memory, params: &Params<'_>) -> Result<(u32, u32), ParamsError> {
    if params.initrd.is_empty() {
        return Ok((0, 0));
    }
    let size = params.initrd.len();
    let too_big = ParamsError::InitrdTooBig { size };
    let end = memory.size().min(LOW_END).min(INITRD_END);
    let start = end
        .checked_sub(size as u64)
        .map(|start| start & !0xfff)
        .filter(|start| *start >= params.kernel_end);
    match (start.map(u32::try_from), u32::try_from(size)) {
        (Some(Ok(start)), Ok(size)) => {
            memory.write(u64::from(start), params.initrd)?;
            Ok((start, size))
        }
        _ => Err(too_big),
    }
}

fn memory_map(size: u64) -> Vec<boot_e820_entry> {
    let entry = |addr, end: u64, r#type| boot_e820_entry {
        addr,
        size: end - addr,
        r#type,
    };
    let low = size.min(LOW_END);
    let mut map = vec![
        entry(0, LOW_RAM_END, RAM),
        entry(ACPI, HIGH_RAM, RESERVED),
        entry(HIGH_RAM, low, RAM),
    ];
    if size > low {
        map.push(entry(HIGH_START, HIGH_START + size - low, RAM));
    }
    map
}
