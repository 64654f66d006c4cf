//! RAM in checkpoints: one full copy, and for each checkpoint the pages that differ from it.
//!
//! KVM's dirty log and [`Memory`]'s own tell which pages may differ. Removing a page from KVM's log
//! write-protects it, and its next write costs a fault, much more than a comparison. So a page stays
//! in the log, and each restore compares it, until it was unchanged several times in a row ([`Habits`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_MEM_LOG_DIRTY_PAGES, KVMIO, kvm_clear_dirty_log,
    kvm_clear_dirty_log__bindgen_ty_1, kvm_enable_cap,
};
use kvm_ioctls::VmFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::{errno, ioctl_iowr_nr};

use super::habits::Habits;
use super::{CheckpointError, Planted, Restored, failed};
use crate::kvm::vm;
use crate::memory::{Memory, RamRange, as_usize, pages_of};
use crate::x86;

// Documentation/virt/kvm/api.rst, 4.117.
ioctl_iowr_nr!(KVM_CLEAR_DIRTY_LOG, KVMIO, 0xc0, kvm_clear_dirty_log);

/// Bytes of a page, the unit of KVM's log.
pub(super) const PAGE: usize = as_usize(x86::PAGE);
/// Pages of a word of the log.
const WORD: u64 = 64;

pub(super) type Page = [u8; PAGE];
/// Pages by their address. Checkpoints that are taken one after the other share those that stay as they are.
type Held = BTreeMap<u64, Arc<Page>>;

/// RAM of a checkpoint: the copy of the first one, and the pages that differ from it.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    base: Arc<Base>,
    differing: Arc<Held>,
}

/// A copy of all RAM.
#[derive(Debug)]
struct Base {
    ranges: Vec<(RamRange, Vec<u8>)>,
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

    /// Describes the pages of memory that differ.
    pub(crate) fn differences(&self, memory: &Memory) -> Result<Vec<String>, CheckpointError> {
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

/// What is known of a machine's RAM.
#[derive(Debug, Default)]
pub(crate) struct Ram {
    base: Option<Arc<Base>>,
    /// The pages of the last checkpoint that was taken or restored.
    at: Option<Arc<Held>>,
    habits: Habits,
}

impl Ram {
    /// The RAM of a new checkpoint.
    pub(crate) fn save(&mut self, vm: &VmFd, memory: &Memory) -> Result<Pages, CheckpointError> {
        let Some(base) = self.base.clone() else {
            start_log(vm, memory)?;
            let base = Arc::new(copy_all(memory)?);
            memory.take_written();
            self.base = Some(Arc::clone(&base));
            let differing = Arc::default();
            self.at = Some(Arc::clone(&differing));
            return Ok(Pages { base, differing });
        };
        let mut differing = self.at.as_deref().cloned().unwrap_or_default();
        let mut page = [0; PAGE];
        let mut settled = Vec::new();
        for address in written(vm, memory)? {
            memory.read(address, &mut page)?;
            let is_bases = base.page(address) == Some(page.as_slice());
            let is_same = match differing.get(&address) {
                Some(before) => **before == page,
                None => is_bases,
            };
            match (is_same, is_bases) {
                (true, _) if self.habits.unchanged(address) => settled.push(address),
                (true, _) => {}
                (false, true) => drop(differing.remove(&address)),
                (false, false) => drop(differing.insert(address, Arc::new(page))),
            }
        }
        clear_log(vm, memory, &settled)?;
        let differing = Arc::new(differing);
        self.at = Some(Arc::clone(&differing));
        Ok(Pages { base, differing })
    }

    /// Makes memory, which has no checkpoint yet, equal to another machine's first checkpoint. The
    /// two machines share its copy from then on.
    pub(crate) fn adopt(
        &mut self,
        vm: &VmFd,
        memory: &Memory,
        pages: &Pages,
    ) -> Result<(), CheckpointError> {
        let extent = |range: &RamRange| (range.start, range.len);
        let ours = memory.ranges();
        let theirs = pages.base.ranges.iter().map(|(range, _)| extent(range));
        if self.base.is_some() || !ours.iter().map(extent).eq(theirs) {
            return Err(CheckpointError::Foreign);
        }
        start_log(vm, memory)?;
        // All pages that are not zero in either: this machine's guest has written nothing yet.
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

    /// Makes memory what it was, but for what is planted.
    pub(crate) fn restore(
        &mut self,
        vm: &VmFd,
        memory: &Memory,
        pages: &Pages,
        planted: &Planted,
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
            let over = planted.over(address, wanted);
            let wanted = over.as_deref().map_or(wanted, |page| page.as_slice());
            // One with traps is always compared.
            let compares = self.habits.compares(address) || over.is_some();
            if compares && memory.holds(address, wanted)? {
                if self.habits.unchanged(address) {
                    settled.push(address);
                }
                continue;
            }
            self.habits.copied(address);
            memory.put_back(address, wanted)?;
            restored.copied += 1;
        }
        self.habits.restored();
        clear_log(vm, memory, &settled)?;
        self.at = Some(Arc::clone(&pages.differing));
        Ok(restored)
    }

    /// The words of memory that differ from a checkpoint of this machine, with their values now.
    pub(crate) fn changed(
        &self,
        vm: &VmFd,
        memory: &Memory,
        pages: &Pages,
    ) -> Result<Vec<(u64, u64)>, CheckpointError> {
        let mut changed = Vec::new();
        let mut now = [0; PAGE];
        let candidates = self.candidates(vm, memory, &pages.differing)?;
        // The next restore must find them again.
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

    /// The pages that may differ from a checkpoint with the pages `wanted`: those written since the
    /// last checkpoint or restore, and those that either of the two holds.
    fn candidates(
        &self,
        vm: &VmFd,
        memory: &Memory,
        wanted: &Held,
    ) -> Result<Vec<u64>, CheckpointError> {
        let mut found = written(vm, memory)?;
        // Pages that both share do not differ.
        let none = Held::new();
        let at = self.at.as_deref().unwrap_or(&none);
        if !std::ptr::eq(at, wanted) {
            found.extend(unshared(at, wanted));
            found.extend(unshared(wanted, at));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// The pages that may have been written since the last checkpoint or restore.
fn written(vm: &VmFd, memory: &Memory) -> Result<Vec<u64>, CheckpointError> {
    let mut found = memory.take_written();
    for (slot, range) in (0..).zip(memory.ranges()) {
        let log = vm
            .get_dirty_log(slot, as_usize(range.len))
            .map_err(failed("get the log of written pages"))?;
        found.extend(pages_of(&log, range.start));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The addresses of the pages that one has and the other does not share.
fn unshared<'h>(one: &'h Held, other: &'h Held) -> impl Iterator<Item = &'h u64> {
    one.iter()
        .filter(|(address, page)| !other.get(address).is_some_and(|it| Arc::ptr_eq(it, page)))
        .map(|(address, _)| address)
}

/// Makes KVM log the pages that the guest writes, and keep them until [`clear_log`].
fn start_log(vm: &VmFd, memory: &Memory) -> Result<(), CheckpointError> {
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

/// Removes pages from KVM's log, with one call for each range.
fn clear_log(vm: &VmFd, memory: &Memory, pages: &[u64]) -> Result<(), CheckpointError> {
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
            let failed = failed("clear the log of written pages");
            return Err(failed(errno::Error::last()));
        }
    }
    Ok(())
}

/// Copies all RAM. Pages that were never touched cost nothing.
fn copy_all(memory: &Memory) -> Result<Base, CheckpointError> {
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
