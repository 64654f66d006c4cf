//! The unwind tables of the running program.

/// Why there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageError {
    /// The program has no `PT_GNU_EH_FRAME`.
    NoHeader,
    /// It is in no segment that is loaded.
    NotLoaded,
}

impl core::fmt::Display for ImageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NoHeader => "the program has no .eh_frame_hdr",
            Self::NotLoaded => "no loaded segment contains the program's .eh_frame_hdr",
        })
    }
}

impl core::error::Error for ImageError {}

/// `Elf64_Phdr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are those of elf.h")]
pub struct ProgramHeader {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub physical: u64,
    pub size_in_file: u64,
    pub size: u64,
    pub alignment: u64,
}

const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const EXECUTABLE: u32 = 1;

/// What a linked program knows about its own code.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// `.eh_frame_hdr`, up to the end of its segment.
    tables: &'static [u8],
    address: u64,
    text: (u64, u64),
}

impl Image {
    /// From the program's own headers (`AT_PHDR` of the auxiliary vector).
    ///
    /// # Errors
    /// [`ImageError`].
    ///
    /// # Safety
    /// The headers must be those of the running program, at the address where it has them.
    pub unsafe fn of_program(headers: &'static [ProgramHeader]) -> Result<Self, ImageError> {
        let find = |kind| headers.iter().find(|it| it.kind == kind);
        let at = headers.as_ptr().expose_provenance() as u64;
        let moved = find(PT_PHDR).map_or(0, |it| at.wrapping_sub(it.address));
        let tables = find(PT_GNU_EH_FRAME).ok_or(ImageError::NoHeader)?;
        let loaded = |it: &&ProgramHeader| {
            it.kind == PT_LOAD
                && (it.address..it.address.saturating_add(it.size_in_file))
                    .contains(&tables.address)
        };
        let segment = headers.iter().find(loaded).ok_or(ImageError::NotLoaded)?;
        let length = segment.address + segment.size_in_file - tables.address;
        let address = tables.address.wrapping_add(moved);
        let code = |it: &&ProgramHeader| it.kind == PT_LOAD && it.flags & EXECUTABLE != 0;
        let starts = headers.iter().filter(code).map(|it| it.address);
        let ends = { headers.iter().filter(code) }.map(|it| it.address.saturating_add(it.size));
        let text = (starts.min().unwrap_or(0), ends.max().unwrap_or(0));
        let (Ok(start), Ok(length)) = (usize::try_from(address), usize::try_from(length)) else {
            return Err(ImageError::NotLoaded);
        };
        // SAFETY: the loader mapped the segment at this place, for as long as the program runs; it
        // is read-only.
        let tables = unsafe {
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(start), length)
        };
        Ok(Self {
            tables,
            address,
            text: (text.0.wrapping_add(moved), text.1.wrapping_add(moved)),
        })
    }

    /// First address of the program's code, and the address behind it.
    #[must_use]
    pub const fn text(&self) -> (u64, u64) {
        self.text
    }

    pub(crate) const fn header(&self) -> &'static [u8] {
        self.tables
    }

    pub(crate) const fn header_address(&self) -> u64 {
        self.address
    }

    /// Where `.eh_frame` is: `.eh_frame_hdr` begins with that.
    pub(crate) fn frames_address(&self) -> Option<u64> {
        let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(self.address);
        let header = gimli::EhFrameHdr::new(self.tables, gimli::LittleEndian);
        match header.parse(&bases, 8).ok()?.eh_frame_ptr() {
            gimli::Pointer::Direct(address) => Some(address),
            gimli::Pointer::Indirect(_) => None,
        }
    }

    /// `.eh_frame`, and what follows in its segment: its end is marked in itself.
    pub(crate) fn frames(&self) -> Option<&'static [u8]> {
        let offset = self.frames_address()?.checked_sub(self.address)?;
        self.tables.get(usize::try_from(offset).ok()?..)
    }
}
