//! Which boundaries of a path are alike for the first of two NMIs.
//!
//! An NMI at boundary i and the two instructions behind it end at boundary i + 2; so do an NMI at
//! boundary i + 1 and the one instruction behind that. Where the machine is the same then, a second
//! NMI does the same from there on, and the pairs (i, j) with j from i + 2 on need not be tried:
//! they are the pairs (i + 1, j). By induction the last of a run of such boundaries stands for all
//! of it. Each other one has the pairs (i, i) and (i, i + 1) left.
//!
//! "The same" means: the general registers, and every word of RAM. What nothing reads afterwards is
//! left out, and so is what differs when the same is done twice:
//! - the records themselves, in the rings of perf and the lab client's log (their heads count);
//! - the stack below the stack pointer, and the NMI's own, which is not in use;
//! - perf's buffers for call chains, which each sample begins anew;
//! - words that were different when the same NMI was made again: clocks, and what follows from
//!   them.
//!
//! Two values count as the same though they are not: the boundary's own address, where the kernel
//! notes that the NMI came there; and how far a ring is filled (`data_head`, and the kernel's own
//! copies of it), because a sample is a word longer for each caller.
//!
//! What is left out wrongly loses pairs. What is not left out costs time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use unwindlab_vmm::Regs;

use super::error::SweepError;
use super::guest::nmi_stack;
use super::track::{STRIDE, Track};
use super::trial::Approach;
use super::worker::Worker;
use crate::driver::word;
use crate::plan::sweep::{Pairs, Reach};

/// How often two boundaries are compared before they count as different: each time shows more of
/// the words that are not steady.
const LOOKS: u32 = 3;
const PAGE: u64 = 4096;
/// `THREAD_SIZE`, to which a kernel stack is aligned. It is twice as much with KASAN: less is left
/// out there.
const STACK: u64 = 16 << 10;
/// Bytes of `rcu_head` in `struct callchain_cpus_entries`, before the pointers
/// (kernel/events/callchain.c).
const CPU_ENTRIES: u64 = 16;
/// Bytes of a CPU's buffers for call chains: for 4 contexts, each a count, 127 addresses and 8
/// marks (`sysctl_perf_event_max_stack`, `..._max_contexts_per_stack`).
const CALLCHAINS: u64 = 4 * 8 * (1 + 127 + 8);
/// Flags that stepping and landing leave behind: TF and RF.
const STEPPED: u64 = 1 << 8 | 1 << 16;

/// The machine at a boundary, as far as it counts.
#[derive(Debug, Clone, PartialEq)]
struct MachineState {
    regs: Regs,
    /// Words that are not as they were where the path begins.
    words: Vec<(u64, Value)>,
}

/// What a word holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    /// The address of the boundary at which the NMI came.
    Here,
    /// `data_head` of a ring, by its number.
    Head(usize),
    Other(u64),
}

/// What an NMI at a boundary leaves behind.
struct Aftermath {
    /// When the boundary's instruction has been executed.
    behind: MachineState,
    /// When the next one has been, too.
    further: Option<MachineState>,
}

/// The addresses of words in which two machines differ; nothing where their registers do.
fn differing(a: &MachineState, b: &MachineState) -> Option<BTreeSet<u64>> {
    if a.regs != b.regs {
        return None;
    }
    let (mut first, mut second) = (a.words.iter().peekable(), b.words.iter().peekable());
    let mut different = BTreeSet::new();
    loop {
        let (one, other) = match (first.peek(), second.peek()) {
            (None, None) => return Some(different),
            (one, None) => (one.copied(), None),
            (None, other) => (None, other.copied()),
            (Some(one), Some(other)) => (
                (one.0 <= other.0).then_some(*one),
                (other.0 <= one.0).then_some(*other),
            ),
        };
        // A word that only one has is in the other as it was where the path begins.
        if one != other {
            different.extend(one.or(other).map(|word| word.0));
        }
        if one.is_some() {
            first.next();
        }
        if other.is_some() {
            second.next();
        }
    }
}

impl Worker<'_> {
    /// Compares the boundaries of stretches that nobody else has taken.
    pub(super) fn compare(&mut self, firsts: &[u32], pairs: &Pairs) -> Result<(), SweepError> {
        let whole = self.whole();
        let firsts: BTreeSet<u32> = firsts.iter().copied().collect();
        while let Some(stretch) = self.common.compared.take(STRIDE, whole.len()) {
            let mut before = None;
            // Its last one is compared with the first of the next, from the same checkpoint.
            let track = whole.only_up_to(stretch.start);
            for number in stretch.start..=stretch.end {
                let seen = match firsts.contains(&number) {
                    true => self.see(&track, number, pairs)?,
                    false => None,
                };
                if let (Some(before), Some(seen)) = (&before, &seen)
                    && self.are_alike(&track, number, before, seen, pairs)?
                    && let Some(alike) = self.common.alike.get(number as usize - 1)
                {
                    alike.store(true, Ordering::Relaxed);
                }
                before = seen;
                if self.common.stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether the boundary before this one leaves behind what this one does.
    fn are_alike(
        &mut self,
        track: &Track,
        number: u32,
        before: &Aftermath,
        seen: &Aftermath,
        pairs: &Pairs,
    ) -> Result<bool, SweepError> {
        let Some(further) = &before.further else {
            return Ok(false);
        };
        let mut pair = (further.clone(), seen.behind.clone());
        for look in 1..=LOOKS {
            let Some(different) = differing(&pair.0, &pair.1) else {
                return Ok(false);
            };
            if self.are_unsteady(&different) {
                return Ok(true);
            }
            if look == LOOKS {
                break;
            }
            let again = (
                self.see(track, number - 1, pairs)?
                    .and_then(|it| it.further),
                self.see(track, number, pairs)?.map(|it| it.behind),
            );
            let (Some(first), Some(second)) = again else {
                return Ok(false);
            };
            self.learn(&pair.0, &first);
            self.learn(&pair.1, &second);
            pair = (first, second);
        }
        Ok(false)
    }

    fn are_unsteady(&self, words: &BTreeSet<u64>) -> bool {
        match self.common.unsteady.lock() {
            Ok(unsteady) => words.is_subset(&unsteady),
            Err(_) => false,
        }
    }

    /// Takes note of what differs when the same is done twice.
    fn learn(&self, first: &MachineState, second: &MachineState) {
        if let (Some(different), Ok(mut unsteady)) =
            (differing(first, second), self.common.unsteady.lock())
        {
            unsteady.extend(different);
        }
    }

    /// Makes an NMI at a boundary and looks at what it leaves; `None` where the way leads
    /// elsewhere.
    fn see(
        &mut self,
        track: &Track,
        number: u32,
        pairs: &Pairs,
    ) -> Result<Option<Aftermath>, SweepError> {
        let Some(next) = track.after(number) else {
            return Ok(None);
        };
        let Some(&step) = track.step(next) else {
            return Ok(None);
        };
        if step.user
            || step.reach != Reach::Stepped
            || !self.go(track, track.nearest(number), number, Approach::Steps)?
        {
            return Ok(None);
        }
        self.nmi()?;
        if !self.walk.run_to(pairs.entry)? {
            return Ok(None);
        }
        let mut dead = self.nmi_stack()?;
        dead.extend(self.callchains(pairs)?);
        if !self.walk.leave_handler(step.rip)? {
            return Ok(None);
        }
        let here = track.step(number).map_or(0, |step| step.rip);
        let behind = self.state(here, &dead)?;
        let further = track.step(next + 1).filter(|it| !it.user).map(|it| it.rip);
        let stepped = self.walk.steps(1)?;
        let further = match further {
            Some(rip) if stepped && self.walk.rip()? == rip => Some(self.state(here, &dead)?),
            _ => None,
        };
        Ok(Some(Aftermath { behind, further }))
    }

    /// The machine as it is now, where its NMI came at this instruction.
    fn state(&mut self, here: u64, dead: &[Range<u64>]) -> Result<MachineState, SweepError> {
        let vcpu = self.walk.driver.vcpu(self.walk.start.vcpu)?;
        let mut regs = vcpu.regs()?;
        regs.rflags &= !STEPPED;
        let mut dead = dead.to_vec();
        dead.extend(self.pages(regs.rsp & !(STACK - 1)..regs.rsp)?);
        let driver = &mut self.walk.driver;
        dead.extend(driver.session.output_pages().map(|page| page..page + PAGE));
        dead.sort_unstable_by_key(|it| it.start);
        let heads = driver.session.heads(driver.machine.memory());
        let value = |word: u64| match heads.iter().position(|head| *head == word) {
            _ if word == here => Value::Here,
            Some(ring) if word != 0 => Value::Head(ring),
            _ => Value::Other(word),
        };
        let changed = driver.machine.changed(&self.walk.start.behind)?;
        let is_alive = |at: &u64| {
            // Ranges may lie in one another, so all that begin before are looked at.
            let before = dead.partition_point(|it| it.start <= *at);
            !dead.iter().take(before).any(|it| it.contains(at))
        };
        let alive = changed.into_iter().filter(|(at, _)| is_alive(at));
        let words = alive.map(|(at, word)| (at, value(word))).collect();
        Ok(MachineState { regs, words })
    }

    /// The stack of an NMI whose handler is about to begin.
    fn nmi_stack(&mut self) -> Result<Vec<Range<u64>>, SweepError> {
        let rsp = self.walk.driver.vcpu(self.walk.start.vcpu)?.regs()?.rsp;
        self.pages(nmi_stack(rsp))
    }

    /// The buffers of perf for call chains, of the path's CPU.
    fn callchains(&mut self, pairs: &Pairs) -> Result<Vec<Range<u64>>, SweepError> {
        let Some(variable) = pairs.callchains else {
            return Ok(Vec::new());
        };
        let index = self.walk.start.vcpu;
        let vcpu = self.walk.driver.vcpu(index)?;
        let entries = word(&vcpu, variable)?;
        if entries == 0 {
            return Ok(Vec::new());
        }
        let buffers = word(&vcpu, entries + CPU_ENTRIES + 8 * u64::from(index))?;
        self.pages(buffers..buffers.saturating_add(CALLCHAINS))
    }

    /// Where a range of virtual addresses lies in guest-physical memory, as far as it is mapped.
    fn pages(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, SweepError> {
        let vcpu = self.walk.driver.vcpu(self.walk.start.vcpu)?;
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at & !(PAGE - 1)).saturating_add(PAGE));
            if let Some(gpa) = vcpu.translate(at)? {
                found.push(gpa..gpa + (end - at));
            }
            at = end;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(words: &[(u64, u64)]) -> MachineState {
        MachineState {
            regs: Regs::default(),
            words: words
                .iter()
                .map(|(at, word)| (*at, Value::Other(*word)))
                .collect(),
        }
    }

    #[test]
    fn words_that_only_one_has_and_other_values_differ() {
        let a = state(&[(8, 1), (16, 2), (24, 3)]);
        let b = state(&[(8, 1), (16, 4), (32, 5)]);
        assert_eq!(differing(&a, &a), Some(BTreeSet::new()));
        assert_eq!(differing(&a, &b), Some(BTreeSet::from([16, 24, 32])));
    }

    #[test]
    fn other_registers_are_never_alike() {
        let mut b = state(&[]);
        b.regs.rax = 1;
        assert_eq!(differing(&state(&[]), &b), None);
    }
}
