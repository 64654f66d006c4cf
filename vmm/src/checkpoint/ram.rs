//! RAM in checkpoints: one whole copy, and for each checkpoint the pages that differ from it.
//!
//! Which pages differ is known from KVM's dirty log and from [`Memory`]'s own. Taking a page out of
//! KVM's log write-protects it, and its next write costs a fault, which is far more than comparing
//! it. So a page stays in the log, and is compared at each restore, until it has been found
//! unchanged [`PATIENCE`] times in a row.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_MEM_LOG_DIRTY_PAGES, KVMIO, kvm_clear_dirty_log,
    kvm_clear_dirty_log__bindgen_ty_1, kvm_enable_cap,
};
use kvm_ioctls::VmFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::{errno, ioctl_iowr_nr};

use super::{CheckpointError, Restored, failed};
use crate::memory::{Memory, Range, as_usize};
use crate::vm;

// Documentation/virt/kvm/api.rst, 4.117.
ioctl_iowr_nr!(KVM_CLEAR_DIRTY_LOG, KVMIO, 0xc0, kvm_clear_dirty_log);

/// Bytes of a page, the unit of KVM's log.
const PAGE: usize = 4096;
/// Pages of a word of the log.
const WORD: u64 = 64;
/// Restores in a row that must find a page unchanged before its writes are watched for again.
const PATIENCE: u8 = 8;
/// Every so many restores a page that is always copied is looked at the next time.
const LOOK: u64 = 16;

type Page = [u8; PAGE];

/// The pages of a checkpoint: what the first one copied, and what differs from that.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    base: Arc<Base>,
    differing: Arc<BTreeMap<u64, Box<Page>>>,
}

/// All of RAM, by its ranges.
#[derive(Debug)]
struct Base {
    ranges: Vec<(Range, Vec<u8>)>,
    /// The pages that are not all zero.
    used: Vec<u64>,
}

impl Base {
    fn page(&self, address: u64) -> Option<&[u8]> {
        let (range, bytes) = self
            .ranges
            .iter()
            .find(|(range, _)| range.addresses().contains(&address))?;
        let at = as_usize(address - range.start);
        bytes.get(at..at + PAGE)
    }
}

impl Pages {
    fn page(&self, address: u64) -> Option<&[u8]> {
        match self.differing.get(&address) {
            Some(page) => Some(page.as_slice()),
            None => self.base.page(address),
        }
    }

    /// The pages of memory that differ.
    pub(super) fn differences(&self, memory: &Memory) -> Result<Vec<String>, CheckpointError> {
        let mut found = Vec::new();
        let mut page = [0; PAGE];
        for range in memory.ranges() {
            for at in range.addresses().step_by(PAGE) {
                memory.read(at, &mut page)?;
                if self.page(at) != Some(page.as_slice()) {
                    found.push(format!("page {at:#x}"));
                }
            }
        }
        Ok(found)
    }
}

/// What a machine knows of its RAM.
#[derive(Debug, Default)]
pub(crate) struct Ram {
    base: Option<Arc<Base>>,
    /// The checkpoint that was made or restored last.
    at: Option<Arc<BTreeMap<u64, Box<Page>>>>,
    /// Pages in KVM's log, and one more than how often in a row they were found unchanged; 0 for
    /// those that are copied without a look.
    unchanged: HashMap<u64, u8>,
    /// Restores so far.
    restores: u64,
}

impl Ram {
    pub(super) fn save(&mut self, vm: &VmFd, memory: &Memory) -> Result<Pages, CheckpointError> {
        let Some(base) = self.base.clone() else {
            watch(vm, memory)?;
            let base = Arc::new(whole(memory)?);
            memory.take_written();
            self.base = Some(Arc::clone(&base));
            let differing = Arc::default();
            self.at = Some(Arc::clone(&differing));
            return Ok(Pages { base, differing });
        };
        let mut differing = BTreeMap::new();
        let mut page = Box::new([0; PAGE]);
        for address in self.candidates(vm, memory, &BTreeMap::new())? {
            memory.read(address, page.as_mut_slice())?;
            if base.page(address) != Some(page.as_slice()) {
                differing.insert(address, page.clone());
            }
        }
        let differing = Arc::new(differing);
        self.at = Some(Arc::clone(&differing));
        Ok(Pages { base, differing })
    }

    /// Makes memory that has no checkpoint of its own the same as that of another machine's first one,
    /// which the two share from then on.
    pub(super) fn adopt(
        &mut self,
        vm: &VmFd,
        memory: &Memory,
        pages: &Pages,
    ) -> Result<(), CheckpointError> {
        let extent = |range: &Range| (range.start, range.len);
        let ours = memory.ranges();
        let theirs = pages.base.ranges.iter().map(|(range, _)| extent(range));
        if self.base.is_some() || !ours.iter().map(extent).eq(theirs) {
            return Err(CheckpointError::Foreign);
        }
        watch(vm, memory)?;
        // All that is not zero in either: the guest of this one has written nothing yet.
        let mut used = memory.take_written();
        used.extend(&pages.base.used);
        for address in used {
            let page = pages.base.page(address).ok_or(CheckpointError::Foreign)?;
            memory.write(address, page)?;
        }
        memory.take_written();
        self.base = Some(Arc::clone(&pages.base));
        self.at = Some(Arc::default());
        Ok(())
    }

    pub(super) fn restore(
        &mut self,
        vm: &VmFd,
        memory: &Memory,
        pages: &Pages,
    ) -> Result<Restored, CheckpointError> {
        if !self
            .base
            .as_ref()
            .is_some_and(|base| Arc::ptr_eq(base, &pages.base))
        {
            return Err(CheckpointError::Foreign);
        }
        let candidates = self.candidates(vm, memory, &pages.differing)?;
        let mut restored = Restored {
            looked_at: candidates.len(),
            copied: 0,
        };
        let mut settled = Vec::new();
        for address in candidates {
            let wanted = pages.page(address).ok_or(CheckpointError::Foreign)?;
            let times = self.unchanged.entry(address).or_insert(0);
            // One that changed the last time mostly did again: it is copied without a look.
            if *times > 0 && memory.holds(address, wanted)? {
                *times += 1;
                if *times > PATIENCE {
                    settled.push(address);
                }
                continue;
            }
            // Another look when it was copied for a while.
            *times = u8::from(self.restores.is_multiple_of(LOOK));
            memory.write(address, wanted)?;
            restored.copied += 1;
        }
        self.restores += 1;
        for address in &settled {
            self.unchanged.remove(address);
        }
        forget(vm, memory, &settled)?;
        memory.take_written();
        self.at = Some(Arc::clone(&pages.differing));
        Ok(restored)
    }

    /// The words of memory that are not as in a checkpoint of this machine, each with what it is now.
    pub(super) fn changed(
        &self,
        vm: &VmFd,
        memory: &Memory,
        pages: &Pages,
    ) -> Result<Vec<(u64, u64)>, CheckpointError> {
        let mut changed = Vec::new();
        let mut now = [0; PAGE];
        let candidates = self.candidates(vm, memory, &pages.differing)?;
        // For the next restore.
        memory.mark_written(&candidates);
        for address in candidates {
            memory.read(address, &mut now)?;
            let then = pages.page(address).ok_or(CheckpointError::Foreign)?;
            let words = now.as_chunks().0.iter().zip(then.as_chunks().0);
            changed.extend(
                (address..)
                    .step_by(8)
                    .zip(words)
                    .filter(|(_, (now, then))| now != then)
                    .map(|(at, (now, _))| (at, u64::from_le_bytes(*now))),
            );
        }
        Ok(changed)
    }

    /// The pages that may differ from those of a checkpoint with these differences: written since
    /// the last checkpoint or restore, or different in either.
    fn candidates(
        &self,
        vm: &VmFd,
        memory: &Memory,
        wanted: &BTreeMap<u64, Box<Page>>,
    ) -> Result<Vec<u64>, CheckpointError> {
        let mut found = memory.take_written();
        for (slot, range) in (0..).zip(memory.ranges()) {
            let log = vm
                .get_dirty_log(slot, as_usize(range.len))
                .map_err(failed("get the log of written pages"))?;
            found.extend(pages_of(&log, range.start));
        }
        // The same in both is no difference between them.
        let same = self
            .at
            .as_deref()
            .is_some_and(|at| std::ptr::eq(at, wanted));
        if !same {
            found.extend(wanted.keys());
            found.extend(self.at.iter().flat_map(|at| at.keys()));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// Addresses of the pages whose bits are set.
pub(crate) fn pages_of(words: &[u64], start: u64) -> impl Iterator<Item = u64> {
    (0_u64..)
        .zip(words)
        .filter(|(_, word)| **word != 0)
        .flat_map(move |(at, &word)| {
            (0..WORD)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| start + (at * WORD + bit) * PAGE as u64)
        })
}

/// Has KVM log which pages the guest writes, and keep them in the log until told otherwise.
fn watch(vm: &VmFd, memory: &Memory) -> Result<(), CheckpointError> {
    let mut keep = kvm_enable_cap {
        cap: KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
        ..Default::default()
    };
    keep.args[0] = 1;
    vm.enable_cap(&keep)
        .map_err(failed("keep pages in the log of written ones"))?;
    vm::set_memory(vm, memory, KVM_MEM_LOG_DIRTY_PAGES)
        .map_err(failed("log which pages are written"))
}

/// Takes pages out of KVM's log, in one call for all of those in a range.
fn forget(vm: &VmFd, memory: &Memory, pages: &[u64]) -> Result<(), CheckpointError> {
    for (slot, range) in (0..).zip(memory.ranges()) {
        let mut of_range = pages
            .iter()
            .filter(|page| range.addresses().contains(page))
            .map(|page| (page - range.start) / PAGE as u64)
            .peekable();
        if of_range.peek().is_none() {
            continue;
        }
        let count = range.len / PAGE as u64;
        let mut bitmap = vec![0_u64; as_usize(count.div_ceil(WORD))];
        for page in of_range {
            if let Some(word) = bitmap.get_mut(as_usize(page / WORD)) {
                *word |= 1 << (page % WORD);
            }
        }
        let clear = kvm_clear_dirty_log {
            slot,
            num_pages: u32::try_from(count).unwrap_or(u32::MAX),
            first_page: 0,
            __bindgen_anon_1: kvm_clear_dirty_log__bindgen_ty_1 {
                dirty_bitmap: bitmap.as_mut_ptr().cast(),
            },
        };
        // SAFETY: KVM reads a bit for each of `num_pages` pages from `bitmap`, which has them.
        if unsafe { ioctl_with_ref(vm, KVM_CLEAR_DIRTY_LOG(), &clear) } != 0 {
            let failed = failed("watch for writes to pages again");
            return Err(failed(errno::Error::last()));
        }
    }
    Ok(())
}

/// A copy of all RAM. What was never touched costs nothing.
fn whole(memory: &Memory) -> Result<Base, CheckpointError> {
    let (mut ranges, mut used) = (Vec::new(), Vec::new());
    let mut page = [0; PAGE];
    for range in memory.ranges() {
        let mut bytes = vec![0; as_usize(range.len)];
        let pages = range.addresses().step_by(PAGE);
        for (at, into) in pages.zip(bytes.chunks_exact_mut(PAGE)) {
            memory.read(at, &mut page)?;
            if page != [0; PAGE] {
                into.copy_from_slice(&page);
                used.push(at);
            }
        }
        ranges.push((range, bytes));
    }
    Ok(Base { ranges, used })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_pages() {
        let found: Vec<u64> = pages_of(&[1 << 63 | 1, 0, 2], 0x10_0000).collect();
        assert_eq!(
            found,
            [0x10_0000, 0x10_0000 + 63 * 4096, 0x10_0000 + 129 * 4096]
        );
    }
}
