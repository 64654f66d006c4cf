//! How often a task had returned to user mode when it wrote a record, by the witness.

use std::collections::BTreeMap;

use crate::invariant::limit::step;
use crate::trace::witness::{RecordAt, UserReturn, Witness};
use crate::trace::{Event, LabEvent, Trace};

/// The returns that the witness noted.
#[derive(Debug, Default)]
pub(crate) struct Returns<'t> {
    witness: Option<&'t Witness>,
    /// By tid, in order.
    of: BTreeMap<u32, Vec<&'t UserReturn>>,
}

impl<'t> Returns<'t> {
    pub fn new(trace: &'t Trace) -> Self {
        let rings = trace.rings.len();
        let of_all = |it: &&Witness| {
            let looked = it.begin.heads.len();
            looked >= rings && it.returns.iter().all(|one| one.heads.len() == looked)
        };
        let witness = trace.witness.as_ref().filter(of_all);
        let mut returns = Self {
            witness,
            of: BTreeMap::new(),
        };
        for one in witness.iter().flat_map(|it| &it.returns) {
            returns.of.entry(one.tid).or_default().push(one);
        }
        returns
    }

    /// The place of a buffer of tracefs among all that the witness looked at; `None` where it did not look at it.
    pub fn buffer(&self, rings: usize, buffer: usize) -> Option<usize> {
        let at = rings.checked_add(buffer)?;
        let looked = self.witness?.begin.heads.len();
        (at < looked).then_some(at)
    }

    /// How many noted returns of its task lie before a record. `None` where one may be missing
    /// before it. A task's returns show more and more of each ring, so a search finds it.
    pub fn before(&self, event: &Event) -> Option<usize> {
        step();
        let witness = self.witness?;
        let record = RecordAt::of(event);
        let ring = event.ring_index;
        let begun = event.start >= *witness.begin.heads.get(ring)?;
        let noted = witness.complete || {
            let last = witness.returns.last()?;
            last.comes_after(record)?
        };
        if !begun || !noted {
            return None;
        }
        let Some(list) = self.of.get(&event.tid?) else {
            return Some(0);
        };
        Some(list.partition_point(|it| it.comes_after(record) == Some(false)))
    }

    /// How many noted returns of its task lie before a record of the lab client's log. `None` where
    /// one may be missing before it.
    pub fn before_slot(&self, event: &LabEvent) -> Option<usize> {
        step();
        let witness = self.witness?;
        let record = RecordAt::of_lab(event);
        let noted = witness.complete || witness.returns.last()?.comes_after(record)?;
        if event.slot < witness.begin.log || !noted {
            return None;
        }
        let list = self.of.get(&event.tid).map_or(&[][..], Vec::as_slice);
        Some(list.partition_point(|it| it.comes_after(record) == Some(false)))
    }

    /// The first noted return of its task after a record. `None` where there is none, or one may be
    /// missing before it.
    pub fn next(&self, event: &Event) -> Option<&'t UserReturn> {
        let list = self.of.get(&event.tid?)?;
        list.get(self.before(event)?).copied()
    }

    /// The last noted return of its task before a record.
    pub fn last(&self, event: &Event) -> Option<&'t UserReturn> {
        let list = self.of.get(&event.tid?)?;
        list.get(self.before(event)?.checked_sub(1)?).copied()
    }

    /// The user instruction to which its task went with the next one.
    pub fn to(&self, event: &Event) -> Option<u64> {
        self.next(event).map(|it| it.rip).filter(|&rip| rip != 0)
    }

    /// Whether a return of its task was noted after a record.
    pub fn is_followed(&self, event: &Event) -> bool {
        let list = event.tid.and_then(|tid| self.of.get(&tid));
        let noted = list.and_then(|list| Some(list.get(self.before(event)?)));
        noted.is_some_and(|next| next.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::Kit;
    use crate::invariant::testkit::lab::{C, LabKit, client};

    #[test]
    fn a_record_from_before_the_witness_or_behind_its_end_has_no_count() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 1001);
        kit.witness();
        kit.kernel_only(0, 1001);
        kit.returns(0, 1001);
        kit.kernel_only(0, 1001);
        let mut trace = kit.trace();
        let counts = |trace: &Trace| {
            let returns = Returns::new(trace);
            let all = trace.events.iter().map(|it| returns.before(it));
            all.collect::<Vec<_>>()
        };
        assert_eq!(counts(&trace), [None, Some(0), Some(1)]);
        trace.witness.as_mut().unwrap().complete = false;
        assert_eq!(counts(&trace), [None, Some(0), None]);
    }

    #[test]
    fn a_slot_of_the_log_has_a_count_in_the_same_way() {
        let mut kit = LabKit::empty();
        kit.perf.witness();
        for returned in 1..=4 {
            kit.ask(1, client(0), 0, C);
            kit.perf.returns_at(0, 1001, returned);
        }
        kit.ask(1, client(0), 0, C);
        let mut trace = kit.trace();
        trace.witness.as_mut().unwrap().begin.log = 2;
        let counts = |trace: &Trace| {
            let returns = Returns::new(trace);
            let slots = &trace.lab.as_ref().unwrap().events;
            let all = slots.iter().map(|it| returns.before_slot(it));
            all.collect::<Vec<_>>()
        };
        assert_eq!(counts(&trace), [None, None, Some(2), Some(3), Some(4)]);
        trace.witness.as_mut().unwrap().complete = false;
        assert_eq!(counts(&trace), [None, None, Some(2), Some(3), None]);
    }
}
