//! Finds the `RDPMC` instructions of a kernel and replaces them. A KVM without performance
//! counters answers them with #GP.
//!
//! `RDPMC` has two bytes (0F 33), as has `out imm8, al` (E6), which leaves the guest on every KVM.
//! Functions are decoded from their start, because these two bytes occur within other
//! instructions too, some thirty times in a distribution's kernel.

use std::io::{self, Read as _, Seek as _};

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use memchr::memmem;
use object::Endianness;
use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::boot::Kernel;
use crate::devices::ports::RDPMC_PORT;
use crate::memory::{AccessError, Memory};

const RDPMC: [u8; 2] = [0x0f, 0x33];
/// `out imm8, al`.
const OUT: [u8; 2] = [0xe6, RDPMC_PORT.to_le_bytes()[0]];

/// Why the `RDPMC` instructions of a kernel cannot be found or replaced.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// It is not an ELF file.
    #[error("failed to read the kernel's ELF headers: {0}")]
    Elf(#[from] object::read::Error),
    /// Its file cannot be read.
    #[error("failed to read the kernel's file: {0}")]
    File(#[from] io::Error),
    /// The kernel's text has no `RDPMC` instruction at this address.
    #[error("there is no RDPMC at {0:#x} in the kernel")]
    NotThere(u64),
    /// The kernel is not at this address in guest memory.
    #[error("failed to replace an RDPMC: {0}")]
    Write(#[from] AccessError),
}

/// An executable segment of the kernel.
struct TextSegment<'a> {
    virt: u64,
    phys: u64,
    bytes: &'a [u8],
}

impl TextSegment<'_> {
    /// Offset of an address in it.
    fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.virt)?).ok()?;
        (offset < self.bytes.len()).then_some(offset)
    }
}

/// The executable segments of a kernel. `read` holds the contents of a file.
fn text<'a>(
    kernel: &'a Kernel<'_>,
    read: &'a mut Vec<u8>,
) -> Result<Vec<TextSegment<'a>>, SiteError> {
    let elf = match kernel {
        Kernel::Elf(elf) => elf.as_ref(),
        Kernel::File(file) => {
            let mut file = *file;
            file.rewind()?;
            file.read_to_end(read)?;
            read.as_slice()
        }
        Kernel::Flat { address, code } => {
            return Ok(vec![TextSegment {
                virt: *address,
                phys: *address,
                bytes: code.as_ref(),
            }]);
        }
    };
    let header = FileHeader64::<Endianness>::parse(elf)?;
    let endian = header.endian()?;
    let mut found = Vec::new();
    for segment in header.program_headers(endian, elf)? {
        if segment.p_type(endian) != PT_LOAD || !segment.p_flags(endian).contains(PF_X) {
            continue;
        }
        let bytes = segment
            .data(endian, elf)
            .map_err(|()| SiteError::NotThere(segment.p_vaddr(endian)))?;
        found.push(TextSegment {
            virt: segment.p_vaddr(endian),
            phys: segment.p_paddr(endian),
            bytes,
        });
    }
    Ok(found)
}

/// The virtual addresses of the `RDPMC` instructions in a kernel, in order. `symbols` are the
/// addresses of its symbols, and whether each is a function. A function ends at the next symbol
/// of any kind: executable segments contain tables too (Linux keeps its read-only data there).
///
/// # Errors
/// The kernel is not an ELF file, or its file cannot be read.
pub fn rdpmc_sites(kernel: &Kernel<'_>, symbols: &[(u64, bool)]) -> Result<Vec<u64>, SiteError> {
    let mut symbols = symbols.to_vec();
    symbols.sort_unstable();
    let mut sites = Vec::new();
    for text in text(kernel, &mut Vec::new())? {
        for offset in memmem::find_iter(text.bytes, &RDPMC) {
            let address = text.virt.wrapping_add(offset as u64);
            let before = symbols.partition_point(|(start, _)| *start <= address);
            let last = before.checked_sub(1).and_then(|it| symbols.get(it));
            if let Some(&(start, true)) = last
                && is_rdpmc(&text, start, address)
            {
                sites.push(address);
            }
        }
    }
    Ok(sites)
}

/// Whether the function at `start` has an `RDPMC` at `address`.
fn is_rdpmc(text: &TextSegment<'_>, start: u64, address: u64) -> bool {
    let code = text
        .offset(start)
        .and_then(|offset| text.bytes.get(offset..));
    let Some(code) = code else { return false };
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    decoder
        .into_iter()
        .take_while(|instruction| instruction.ip() <= address)
        .any(|it| it.ip() == address && it.mnemonic() == Mnemonic::Rdpmc && it.len() == RDPMC.len())
}

/// Replaces the `RDPMC` instructions of a loaded kernel.
pub(crate) fn replace(
    memory: &Memory,
    kernel: &Kernel<'_>,
    sites: &[u64],
) -> Result<(), SiteError> {
    let mut read = Vec::new();
    let text = text(kernel, &mut read)?;
    for &site in sites {
        let not_there = SiteError::NotThere(site);
        let found = text
            .iter()
            .find_map(|text| Some((text, text.offset(site)?)))
            .filter(|(text, offset)| {
                text.bytes
                    .get(*offset..)
                    .is_some_and(|it| it.starts_with(&RDPMC))
            });
        let (text, offset) = found.ok_or(not_there)?;
        memory.write(text.phys.wrapping_add(offset as u64), &OUT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x10_0000;

    fn flat(code: &[u8]) -> Kernel<'_> {
        Kernel::Flat {
            address: START,
            code: code.into(),
        }
    }

    #[test]
    fn only_instructions_are_sites() {
        let code = [
            0xb8, 0x0f, 0x33, 0x0f, 0x33, // mov eax, 0x330f330f
            0x0f, 0x33, // rdpmc
            0xe8, 0x00, 0x00, 0x0f, 0x33, // call
            0xc3, // ret
            0x0f, 0x33, // rdpmc, in the next function
        ];
        let kernel = flat(&code);
        let functions = |starts: &[u64]| -> Vec<(u64, bool)> {
            starts.iter().map(|start| (*start, true)).collect()
        };
        let sites = |starts: &[u64]| rdpmc_sites(&kernel, &functions(starts)).unwrap();
        let found = sites(&[START, START + 13]);
        assert_eq!(found, [START + 5, START + 13]);
        assert_eq!(sites(&[]), [0; 0], "no function");
        let above = sites(&[START + 12, u64::MAX]);
        assert_eq!(above, [START + 13], "what no function holds is left out");
        let below = sites(&[0]);
        assert_eq!(below, [0; 0], "a function that is not in the text");
        let out_of_step = sites(&[START + 3]);
        assert_eq!(out_of_step, [START + 3, START + 5, START + 13]);
        let table = rdpmc_sites(&kernel, &[(START, true), (START + 13, false)]).unwrap();
        assert_eq!(table, [START + 5], "a table behind the function");
    }

    #[test]
    fn the_last_byte_of_the_text_is_no_site() {
        assert_eq!(
            rdpmc_sites(&flat(&[0x90, 0x0f]), &[(START, true)]).unwrap(),
            [0; 0]
        );
    }

    #[test]
    fn a_site_is_checked_before_it_is_replaced() {
        let memory = Memory::new(4).unwrap();
        let code = [0x90, 0x0f, 0x33, 0x0f];
        memory.write(START, &code).unwrap();
        for wrong in [0, START, START + 2, START + 3, START + 4, u64::MAX] {
            let refused = replace(&memory, &flat(&code), &[wrong]);
            assert!(matches!(refused, Err(SiteError::NotThere(at)) if at == wrong));
        }
        replace(&memory, &flat(&code), &[START + 1]).unwrap();
        let mut now = [0; 4];
        memory.read(START, &mut now).unwrap();
        assert_eq!(now, [0x90, 0xe6, 0xf6, 0x0f]);
    }

    #[test]
    fn no_elf_is_an_error() {
        let kernel = Kernel::Elf([0x7f, b'E', b'L', b'F'].as_slice().into());
        assert!(matches!(rdpmc_sites(&kernel, &[]), Err(SiteError::Elf(_))));
    }
}
