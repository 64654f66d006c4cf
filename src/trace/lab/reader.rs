//! Reading the lab client's log out of guest memory, also of a guest that hangs.

use serde::{Deserialize, Serialize};
use unwindlab_abi::lab::{HEAD_OFFSET, MAGIC, MAX_LOG_PAGES, SLOT_BYTES, SLOTS_OFFSET, VERSION};
use unwindlab_abi::mailbox::PAGE_SIZE;

use crate::trace::ring::{GuestRead, NotGuestMemory};

/// The log's bytes, as they stood when the trial was over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabLog {
    /// Slots asked for, those that did not exist included.
    pub head: u64,
    /// Slots there are.
    pub capacity: u64,
    /// The slots up to the head.
    pub bytes: Vec<u8>,
    /// Why nothing can be read, if so.
    pub corrupt: Option<String>,
}

/// Why there is no log. Each is the guest's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabLogError {
    /// Fewer or more pages than a log can have.
    #[error("{0} pages announced; a log has 2 to {max}", max = MAX_LOG_PAGES + 1)]
    Pages(usize),
    /// The control page says something else.
    #[error("its control page says {0:#x}, version {1}")]
    Control(u32, u32),
    /// More or fewer slots than the pages hold.
    #[error("{slots} slots in {pages} pages")]
    Slots {
        /// By the control page.
        slots: u64,
        /// As announced.
        pages: usize,
    },
    /// Part of it is outside guest memory.
    #[error(transparent)]
    Memory(#[from] NotGuestMemory),
}

/// Whether so many pages, the control page included, can be a log.
#[must_use]
pub fn may_be_log(pages: usize) -> bool {
    (2..=MAX_LOG_PAGES as usize + 1).contains(&pages)
}

impl LabLog {
    /// Reads the log in these pages; what cannot be read is said in [`LabLog::corrupt`].
    #[must_use]
    pub fn read<M: GuestRead + ?Sized>(memory: &M, pages: &[u64]) -> Self {
        read(memory, pages).unwrap_or_else(|error| Self {
            corrupt: Some(error.to_string()),
            ..Self::default()
        })
    }
}

/// Kind and CPU of a slot that is written to its end, while the guest runs; the pages are those of
/// the log, the control page first.
#[must_use]
pub fn slot<M: GuestRead + ?Sized>(memory: &M, pages: &[u64], number: u64) -> Option<(u8, u8)> {
    let in_page = (PAGE_SIZE / SLOT_BYTES) as u64;
    let page = usize::try_from(number / in_page).ok()?.checked_add(1)?;
    let at = pages.get(page)? + number % in_page * SLOT_BYTES as u64;
    // The commit word, in the upper half of the first, holds the low half of the slot's number,
    // plus one.
    let [kind, _, _, _, commit @ ..] = memory.load(at).ok()?.to_le_bytes();
    let [_, _, _, _, cpu, ..] = memory.load(at + 24).ok()?.to_le_bytes();
    let expected = number.wrapping_add(1).to_le_bytes();
    (expected.starts_with(&commit) && commit != [0; 4]).then_some((kind, cpu))
}

fn read<M: GuestRead + ?Sized>(memory: &M, pages: &[u64]) -> Result<LabLog, LabLogError> {
    let (control, data) = match pages {
        [control, data @ ..] if may_be_log(pages.len()) => (*control, data),
        _ => return Err(LabLogError::Pages(pages.len())),
    };
    let [magic, version] = split(memory.load(control)?);
    if (magic, version) != (MAGIC, VERSION) {
        return Err(LabLogError::Control(magic, version));
    }
    let slots = memory.load(control + SLOTS_OFFSET as u64)?;
    let hold = (data.len() * (PAGE_SIZE / SLOT_BYTES)) as u64;
    if slots != hold {
        let pages = pages.len();
        return Err(LabLogError::Slots { slots, pages });
    }
    let head = memory.load(control + HEAD_OFFSET as u64)?;
    let used = usize::try_from(head.min(slots)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; used * SLOT_BYTES];
    for (chunk, &page) in bytes.chunks_mut(PAGE_SIZE).zip(data) {
        memory.read(page, chunk)?;
    }
    Ok(LabLog {
        head,
        capacity: slots,
        bytes,
        corrupt: None,
    })
}

fn split(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}
