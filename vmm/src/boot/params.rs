//! Boot parameters: memory map, command line, initrd, ACPI root pointer
//! (Documentation/arch/x86/boot.rst and zero-page.rst).

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::ByteValued;

use super::{ACPI, CMDLINE, HIGH_RAM, LOW_RAM_END, ZERO_PAGE};
use crate::memory::{AccessError, HIGH_START, LOW_END, Memory};
use crate::x86::PAGE;

/// Bytes of the longest command line that an x86 kernel reads, with its NUL (COMMAND_LINE_SIZE).
const MAX_CMDLINE: usize = 2048;

const BOOT_FLAG: u16 = 0xaa55;
/// "HdrS".
const HEADER: u32 = 0x5372_6448;
/// A boot loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xff;
/// Boot protocol 2.15, the first with 64-bit command line and initrd in wide use.
const VERSION: u16 = 0x20f;
/// The highest address an initrd may have without the 64-bit fields (initrd_addr_max).
const INITRD_END: u64 = 0x8000_0000;

const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// Why boot parameters cannot be written.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum ParamsError {
    /// The command line is too long.
    #[error("the kernel command line has {len} bytes, a kernel reads {}: shorten it", MAX_CMDLINE - 1)]
    CmdlineTooLong { len: usize },
    /// The command line would end at its NUL.
    #[error("the kernel command line contains a NUL byte")]
    CmdlineNul,
    /// The initrd does not fit.
    #[error("no room for an initrd of {size} bytes after the kernel: give the guest more memory")]
    InitrdTooBig { size: usize },
    /// The structures below 1 MiB do not fit: a bug of this crate.
    #[error("failed to write the boot parameters: {0}")]
    Write(#[from] AccessError),
}

/// The contents of the boot parameters.
#[derive(Debug)]
pub(super) struct Params<'a> {
    pub initrd: &'a [u8],
    pub cmdline: &'a str,
    /// Guest-physical address of the ACPI root pointer.
    pub rsdp: u64,
    /// First address after the kernel.
    pub kernel_end: u64,
}

/// Writes the zero page and everything it points to.
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

/// Returns the command line's address.
fn write_cmdline(memory: &Memory, cmdline: &str) -> Result<u32, ParamsError> {
    if cmdline.len() >= MAX_CMDLINE {
        return Err(ParamsError::CmdlineTooLong { len: cmdline.len() });
    }
    if cmdline.contains('\0') {
        return Err(ParamsError::CmdlineNul);
    }
    // Guest memory is zeroed: the NUL is there.
    memory.write(u64::from(CMDLINE), cmdline.as_bytes())?;
    Ok(CMDLINE)
}

/// Writes the initrd to the highest pages that it may have. Returns its address and size.
fn write_initrd(memory: &Memory, params: &Params<'_>) -> Result<(u32, u32), ParamsError> {
    if params.initrd.is_empty() {
        return Ok((0, 0));
    }
    let size = params.initrd.len();
    let too_big = ParamsError::InitrdTooBig { size };
    let end = memory.size().min(LOW_END).min(INITRD_END);
    let start = end
        .checked_sub(size as u64)
        .map(|start| start & !(PAGE - 1))
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
