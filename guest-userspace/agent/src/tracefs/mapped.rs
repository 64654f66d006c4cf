//! The buffer of an instance and a CPU, mapped, so that the host reads it in the agent's memory
//! (Documentation/trace/ring-buffer-map.rst, include/uapi/linux/trace_mmap.h, 7.3).

use std::fs::File;
use std::io;
use std::path::Path;

use unwindlab_abi::tracefs::SUB_BUFFER;

use crate::pages::Pages;

/// A mapped `trace_pipe_raw`: the kernel's page about it, then the sub-buffers, the reader's first.
#[derive(Debug)]
pub struct Mapped {
    /// Index of the instance.
    pub instance: u32,
    /// The CPU that writes it.
    pub cpu: u32,
    pages: Pages,
    // As long as it is open, nobody removes the instance.
    _file: File,
}

impl Mapped {
    /// Maps an empty buffer that has this many sub-buffers, the reader's included.
    ///
    /// # Errors
    /// That of `open` or `mmap`, or that the kernel's sub-buffers are others.
    pub fn new(file: &Path, instance: u32, cpu: u32, sub_buffers: usize) -> io::Result<Self> {
        let file = File::open(file)?;
        let pages = Pages::of_tracer(&file, 1 + sub_buffers)?;
        // `struct trace_buffer_meta`: `meta_page_size`, `meta_struct_len`, `subbuf_size`, `nr_subbufs`.
        let words = pages.read(0, 16).unwrap_or_default();
        let (words, _) = words.as_chunks::<4>();
        let word = |at: usize| words.get(at).copied().map(u32::from_le_bytes);
        let expected = [SUB_BUFFER, SUB_BUFFER, sub_buffers].map(|it| u32::try_from(it).ok());
        if [word(0), word(2), word(3)] != expected {
            let found = format!("{words:?} describe other sub-buffers than {expected:?}");
            return Err(io::Error::other(found));
        }
        Ok(Self {
            instance,
            cpu,
            pages,
            _file: file,
        })
    }

    /// Address and number of its sub-buffers without the reader's, in the order in which the kernel fills them: by
    /// their numbers (`rb_setup_ids_meta_page`, kernel/trace/ring_buffer.c).
    #[must_use]
    pub fn sub_buffers(&self) -> (u64, u32) {
        let start = self.pages.address() + 2 * SUB_BUFFER as u64;
        let count = self.pages.end().saturating_sub(start) / SUB_BUFFER as u64;
        (start, u32::try_from(count).unwrap_or(u32::MAX))
    }
}
