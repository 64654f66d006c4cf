//! Guest-physical addresses of the agent's own memory, by `/proc/self/pagemap`.
//!
//! The page map does not show the raw page frames of perf's rings, see
//! [`unwindlab_abi::AgentMessage::Locate`].

use std::fs::File;
use std::os::unix::fs::FileExt;

use unwindlab_abi::mailbox::PAGE_SIZE;

/// Bit 63 of an entry: the page is in RAM (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
/// Bits 0 to 54: the page frame number, zero for a reader without `CAP_SYS_ADMIN`.
const FRAME: u64 = (1 << 55) - 1;
const ENTRY: usize = size_of::<u64>();

/// Why an address has no guest-physical address.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PhysicalError {
    /// The page map cannot be opened or read.
    #[error("cannot read /proc/self/pagemap: {0}")]
    Pagemap(#[from] std::io::Error),
    /// The page is not in RAM.
    #[error("page {address:#x} is not in memory")]
    Absent { address: u64 },
    /// The kernel hides the number.
    #[error("the kernel hides the frame number of {address:#x}: CAP_SYS_ADMIN is needed")]
    Hidden { address: u64 },
}

/// Guest-physical addresses of `count` pages from `start` on.
///
/// They stay valid only for memory that does not move: see [`crate::system::pin_memory`].
///
/// # Errors
/// [`PhysicalError`].
pub fn pages(start: u64, count: usize) -> Result<Vec<u64>, PhysicalError> {
    let map = File::open("/proc/self/pagemap")?;
    let mut raw = vec![0; count * ENTRY];
    map.read_exact_at(&mut raw, start / PAGE_SIZE as u64 * ENTRY as u64)?;
    raw.as_chunks::<ENTRY>()
        .0
        .iter()
        .zip((start..).step_by(PAGE_SIZE))
        .map(|(entry, address)| decode(u64::from_le_bytes(*entry), address))
        .collect()
}

fn decode(entry: u64, address: u64) -> Result<u64, PhysicalError> {
    if entry & PRESENT == 0 {
        return Err(PhysicalError::Absent { address });
    }
    match entry & FRAME {
        0 => Err(PhysicalError::Hidden { address }),
        frame => Ok(frame * PAGE_SIZE as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;

    #[test]
    fn decodes_what_the_kernel_documents() {
        assert_eq!(decode(PRESENT | 1 << 55 | 0x1234, 0).unwrap(), 0x123_4000);
        assert!(matches!(
            decode(0x1234, 0x5000),
            Err(PhysicalError::Absent { address: 0x5000 })
        ));
        assert!(matches!(
            decode(PRESENT, 0x5000),
            Err(PhysicalError::Hidden { address: 0x5000 })
        ));
    }

    #[test]
    fn own_pages_are_present_and_distinct() {
        let area = Pages::new(4).unwrap();
        match pages(area.address(), 4) {
            Ok(mut found) => {
                assert!(found.iter().all(|p| p % PAGE_SIZE as u64 == 0 && *p != 0));
                found.sort_unstable();
                found.dedup();
                assert_eq!(found.len(), 4);
            }
            // Without privileges the pages must at least be known to be there.
            Err(error) => assert!(matches!(error, PhysicalError::Hidden { .. }), "{error}"),
        }
    }

    #[test]
    fn unmapped_memory_is_absent() {
        let address = {
            let area = Pages::new(1).unwrap();
            area.address()
        };
        assert!(matches!(
            pages(address, 1),
            Err(PhysicalError::Absent { .. })
        ));
    }
}
