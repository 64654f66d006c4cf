//! Kernel images: the ELF inside a bzImage, its symbols ([`symbols`]) and source lines ([`lines`]).
//!
//! Layout of the setup header: Documentation/arch/x86/boot.rst. The payload is the compressed
//! ELF (with the relocations of a relocatable kernel after it) and, for every compression but
//! gzip, which has it built in, the uncompressed size as a little-endian `u32`.

#[cfg(test)]
pub(crate) mod fixtures;
pub mod lines;
pub mod symbols;
pub mod text;
pub mod types;

use std::borrow::Cow;
use std::io::Read;

use ruzstd::decoding::StreamingDecoder;

/// Why a file cannot be booted as a kernel.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum ImageError {
    /// Neither an ELF file nor a bzImage.
    #[error("not a kernel: neither an ELF vmlinux nor a bzImage")]
    Unknown,
    /// An ELF file of another kind.
    #[error("not a kernel: {0}")]
    Elf(&'static str),
    /// The setup header contradicts itself or the file.
    #[error("not a kernel: the bzImage's setup header is damaged: {0}")]
    Header(&'static str),
    /// A bzImage from before boot protocol 2.08 (Linux 2.6.24).
    #[error("not a kernel: boot protocol {major}.{minor:02} is too old, 2.08 is needed")]
    Protocol { major: u8, minor: u8 },
    /// An unsupported compression.
    #[error("cannot unpack the bzImage: its payload is not compressed with zstd, xz or gzip")]
    Compression,
    /// The payload cannot be decompressed.
    #[error("cannot unpack the bzImage: {0}")]
    Payload(String),
}

/// More than any kernel has: a vmlinux with debug information has 500 MB.
const MAX_VMLINUX: u64 = 2 << 30;

const SETUP_SECTS: usize = 0x1f1;
const BOOT_FLAG: usize = 0x1fe;
const HEADER_MAGIC: usize = 0x202;
const PROTOCOL: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The ELF vmlinux in `file`, which is a vmlinux or a bzImage.
pub fn vmlinux(file: &[u8]) -> Result<Cow<'_, [u8]>, ImageError> {
    let elf = if file.starts_with(b"\x7fELF") {
        Cow::Borrowed(file)
    } else {
        Cow::Owned(unpack(file)?)
    };
    check_elf(&elf)?;
    Ok(elf)
}

/// Decompresses the payload of a bzImage.
fn unpack(file: &[u8]) -> Result<Vec<u8>, ImageError> {
    if bytes_at::<4>(file, HEADER_MAGIC) != Some(*b"HdrS")
        || bytes_at::<2>(file, BOOT_FLAG) != Some([0x55, 0xaa])
    {
        return Err(ImageError::Unknown);
    }
    let cut = ImageError::Header("it is cut short");
    let [minor, major] = bytes_at::<2>(file, PROTOCOL).ok_or(cut)?;
    if (major, minor) < (2, 8) {
        return Err(ImageError::Protocol { major, minor });
    }
    let payload = payload(file).ok_or(ImageError::Header("its payload lies outside the file"))?;
    let trailer = payload
        .last_chunk::<4>()
        .ok_or(ImageError::Header("its payload is empty"))?;
    let size = u64::from(u32::from_le_bytes(*trailer));
    if size > MAX_VMLINUX {
        return Err(ImageError::Header("its payload is too large"));
    }
    let vmlinux = decompress(payload, size)?;
    if u64::try_from(vmlinux.len()) != Ok(size) {
        return Err(ImageError::Payload(format!(
            "{} bytes came out instead of {size}",
            vmlinux.len()
        )));
    }
    Ok(vmlinux)
}

fn payload(file: &[u8]) -> Option<&[u8]> {
    // 0 means 4, for images from before this field existed.
    let setup_sects = match file.get(SETUP_SECTS)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let offset = usize::try_from(u32::from_le_bytes(bytes_at(file, PAYLOAD_OFFSET)?)).ok()?;
    let length = usize::try_from(u32::from_le_bytes(bytes_at(file, PAYLOAD_LENGTH)?)).ok()?;
    let start = (setup_sects + 1).checked_mul(512)?.checked_add(offset)?;
    file.get(start..start.checked_add(length)?)
}

fn decompress(payload: &[u8], size: u64) -> Result<Vec<u8>, ImageError> {
    let failed = |error: std::io::Error| ImageError::Payload(error.to_string());
    let decoder: Box<dyn Read + '_> = if payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        // A single frame: the size after it is not part of the compressed data.
        let decoder = StreamingDecoder::new(payload);
        Box::new(decoder.map_err(|error| ImageError::Payload(error.to_string()))?)
    } else if payload.starts_with(b"\xfd7zXZ\0") {
        Box::new(liblzma::bufread::XzDecoder::new(payload))
    } else if payload.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::GzDecoder::new(payload))
    } else {
        return Err(ImageError::Compression);
    };
    let mut vmlinux = Vec::new();
    // One byte more than announced shows that the size is wrong.
    decoder
        .take(size.saturating_add(1))
        .read_to_end(&mut vmlinux)
        .map_err(failed)?;
    Ok(vmlinux)
}

/// Checks for a 64-bit x86 executable with something to load.
fn check_elf(elf: &[u8]) -> Result<(), ImageError> {
    use object::elf::{EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PT_LOAD};
    use object::read::elf::{FileHeader, ProgramHeader};

    let header = FileHeader64::<object::Endianness>::parse(elf)
        .map_err(|_| ImageError::Elf("its ELF header is damaged, or not a 64-bit one"))?;
    let endian = header
        .endian()
        .map_err(|_| ImageError::Elf("its byte order is unknown"))?;
    if header.e_machine(endian) != EM_X86_64 {
        return Err(ImageError::Elf(
            "it is built for another machine than x86-64",
        ));
    }
    if !matches!(header.e_type(endian), ET_EXEC | ET_DYN) {
        return Err(ImageError::Elf("it is an object file, not an executable"));
    }
    let segments = header
        .program_headers(endian, elf)
        .map_err(|_| ImageError::Elf("its program headers lie outside the file"))?;
    if !segments
        .iter()
        .any(|segment| segment.p_type(endian) == PT_LOAD)
    {
        return Err(ImageError::Elf("it has nothing to load"));
    }
    Ok(())
}

/// Whether the kernel has a PVH entry point, by which QEMU and the VMM start it without a boot
/// loader.
#[must_use]
pub fn has_pvh_entry(vmlinux: &[u8]) -> bool {
    pvh_entry(vmlinux).is_some()
}

/// The kernel's PVH entry point, a physical address: what an ELF note named `Xen` of type 18
/// (`XEN_ELFNOTE_PHYS32_ENTRY`) holds.
#[must_use]
pub fn pvh_entry(vmlinux: &[u8]) -> Option<u32> {
    use object::elf::{FileHeader64, NoteType};
    use object::read::elf::{FileHeader, ProgramHeader};
    const PHYS32_ENTRY: NoteType = NoteType(18);

    let search = || -> object::Result<Option<u32>> {
        let header = FileHeader64::<object::Endianness>::parse(vmlinux)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, vmlinux)? {
            let Some(mut notes) = segment.notes(endian, vmlinux)? else {
                continue;
            };
            while let Some(note) = notes.next()? {
                if note.name() == b"Xen" && note.n_type(endian) == PHYS32_ENTRY {
                    let entry = note.desc().first_chunk();
                    return Ok(entry.map(|bytes| u32::from_le_bytes(*bytes)));
                }
            }
        }
        Ok(None)
    };
    search().ok().flatten()
}

/// A part of a kernel that is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its physical address.
    pub address: u64,
    /// What the file has of it.
    pub content: &'a [u8],
    /// Bytes that it takes in memory, with those that are zero.
    pub size: u64,
}

/// The parts of a kernel that are loaded.
///
/// # Errors
/// [`ImageError`] where the file is no ELF, or says that they lie outside of it.
pub fn load_segments(vmlinux: &[u8]) -> Result<Vec<Segment<'_>>, ImageError> {
    use object::elf::{FileHeader64, PT_LOAD};
    use object::read::elf::{FileHeader, ProgramHeader};

    let damaged = |_| ImageError::Elf("its program headers lie outside the file");
    let header = FileHeader64::<object::Endianness>::parse(vmlinux).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let headers = header.program_headers(endian, vmlinux).map_err(damaged)?;
    let loaded = headers.iter().filter(|it| it.p_type(endian) == PT_LOAD);
    loaded
        .map(|segment| {
            let content = segment.data(endian, vmlinux);
            let outside = |()| ImageError::Elf("a segment lies outside the file");
            Ok(Segment {
                address: segment.p_paddr(endian),
                content: content.map_err(outside)?,
                size: segment.p_memsz(endian),
            })
        })
        .collect()
}

/// The kernel without what follows its last segment: sections, symbols, debug information. A
/// vmlinux from a build can have hundreds of megabytes of these, and booting needs none.
///
/// Returns the file unchanged if its program headers cannot be read.
#[must_use]
pub fn without_sections(vmlinux: &[u8]) -> Cow<'_, [u8]> {
    const SECTIONS_OFFSET: std::ops::Range<usize> = 0x28..0x30;
    const SECTIONS_COUNT_AND_NAMES: std::ops::Range<usize> = 0x3c..0x40;

    let Some(end) = end_of_segments(vmlinux) else {
        return Cow::Borrowed(vmlinux);
    };
    let mut kept = vmlinux.get(..end).unwrap_or(vmlinux).to_vec();
    for field in [SECTIONS_OFFSET, SECTIONS_COUNT_AND_NAMES] {
        if let Some(field) = kept.get_mut(field) {
            field.fill(0);
        }
    }
    Cow::Owned(kept)
}

/// The offset at which the last segment, or the table of their headers, ends.
fn end_of_segments(vmlinux: &[u8]) -> Option<usize> {
    use object::elf::FileHeader64;
    use object::read::elf::{FileHeader, ProgramHeader};

    let header = FileHeader64::<object::Endianness>::parse(vmlinux).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, vmlinux).ok()?;
    let headers = u64::from(header.e_phentsize(endian)) * u64::from(header.e_phnum(endian));
    let mut end = header.e_phoff(endian).checked_add(headers)?;
    for segment in segments {
        let (offset, size) = segment.file_range(endian);
        end = end.max(offset.checked_add(size)?);
    }
    usize::try_from(end).ok()
}

fn bytes_at<const N: usize>(file: &[u8], offset: usize) -> Option<[u8; N]> {
    file.get(offset..)?.first_chunk::<N>().copied()
}

/// The release (`7.2.13+deb14-cloud-amd64`) in the kernel's banner.
#[must_use]
pub fn release(vmlinux: &[u8]) -> Option<&str> {
    const BANNER: &[u8] = b"Linux version ";
    for at in memchr::memmem::find_iter(vmlinux, BANNER) {
        let rest = vmlinux.get(at + BANNER.len()..)?;
        // The image also contains the format string `Linux version %s`.
        if let Some(end) = rest.iter().take(128).position(|c| *c == b' ')
            && let Some(text) = rest.get(..end).and_then(|text| str::from_utf8(text).ok())
            && text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_graphic())
        {
            return Some(text);
        }
    }
    None
}

/// The kernel's own copy of its configuration, if it has one (`CONFIG_IKCONFIG`).
#[must_use]
pub fn config(vmlinux: &[u8]) -> Option<String> {
    let at = memchr::memmem::find(vmlinux, b"IKCFG_ST\x1f\x8b")? + 8;
    let mut text = String::new();
    flate2::bufread::GzDecoder::new(vmlinux.get(at..)?)
        .take(16 << 20)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
