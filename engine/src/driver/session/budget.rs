//! What a trial may take of the harness's memory, as far as no announcement bounds it. The guest writes as much as it
//! likes; a trial that takes more ends, with the number.

use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::ring::RingReader;

use super::AgentSession;

/// Most bytes of records in all rings. A ring has a limit of its own, 64 MiB.
pub(crate) const RING_BYTES: usize = 256 << 20;
/// Most records in all rings: each becomes an event of some hundred bytes when the trace is decoded.
/// A minute of four clients has 0.2 million.
pub(crate) const RECORDS: usize = 4 << 20;
/// Most times that somebody waits for a page of a thread's stack, each with everybody's progress.
pub(crate) const BLOCKS: usize = 4096;

/// What was read of rings.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    bytes: usize,
    records: usize,
}

impl Held {
    /// Of all these.
    pub fn of(rings: &[RingReader]) -> Self {
        let sum = |of: fn(&RingReader) -> usize| rings.iter().map(of).sum();
        Self {
            bytes: sum(|ring| ring.bytes().len()),
            records: sum(RingReader::records),
        }
    }

    /// Counts what a part of it has come to.
    pub const fn grow(&mut self, before: Self, after: Self) {
        self.bytes += after.bytes - before.bytes;
        self.records += after.records - before.records;
    }

    /// What it is more than a trial may have, in words.
    pub fn over_budget(self) -> Option<String> {
        over([
            (self.bytes, RING_BYTES, "bytes of records"),
            (self.records, RECORDS, "records"),
        ])
    }
}

impl AgentSession {
    /// What this trial has more of than it may, in words.
    pub fn over_budget(&self) -> Option<String> {
        let blocks = self.recording.blocks.len();
        let over_in_rings = Held::of(&self.rings).over_budget();
        over_in_rings.or_else(|| over([(blocks, BLOCKS, "waits for a page")]))
    }

    /// The end of a trial that came to this one: one that is over its budget was not read to its end.
    pub fn within_budget(&self, end: TrialEnd) -> TrialEnd {
        match (self.over_budget(), end) {
            (Some(what), TrialEnd::Completed) => TrialEnd::Misbehaved { what },
            (_, end) => end,
        }
    }
}

fn over<'w>(used: impl IntoIterator<Item = (usize, usize, &'w str)>) -> Option<String> {
    let over = used.into_iter().find(|(used, most, _)| used > most);
    over.map(|(used, most, what)| {
        format!("{used} {what} in one trial, at most {most} are kept; shorten the trial")
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use unwindlab_abi::mailbox::PAGE_SIZE;
    use unwindlab_abi::message::RingAnnounce;
    use unwindlab_oracle::trace::ring::{DATA_HEAD, GuestRead, MAX_DATA_PAGES, NotGuestMemory};
    use unwindlab_vmm::Memory;

    use super::*;

    const PAGE: u64 = 4096;

    /// A ring with nothing but headers, of which there are always more.
    struct Endless(Cell<u64>);

    impl GuestRead for Endless {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), NotGuestMemory> {
            let header = [1, 0, 0, 0, 0, 0, 8, 0];
            let bytes = header.iter().cycle();
            into.iter_mut()
                .zip(bytes)
                .for_each(|(to, from)| *to = *from);
            Ok(())
        }

        fn load(&self, gpa: u64) -> Result<u64, NotGuestMemory> {
            Ok(if gpa == DATA_HEAD { self.0.get() } else { 0 })
        }

        fn store(&self, _: u64, _: u64) -> Result<(), NotGuestMemory> {
            Ok(())
        }
    }

    #[test]
    fn a_trial_with_too_many_records_ends() {
        let plan = crate::driver::announced::tests::plan();
        let mut session = AgentSession::new(&plan, 1);
        let mut ring = RingReader::new(&RingAnnounce {
            ring: 0,
            cpu: 0,
            control_page: 0,
            data_pages: (1..=MAX_DATA_PAGES as u64)
                .map(|page| page * PAGE)
                .collect(),
            backward: false,
        })
        .unwrap();
        let memory = Endless(Cell::new(0));
        for _ in 0..2 {
            memory.0.set(memory.0.get() + MAX_DATA_PAGES as u64 * PAGE);
            ring.drain(&memory).unwrap();
        }
        session.rings = vec![ring.clone()];
        assert_eq!(session.over_budget(), None, "{}", ring.records());
        memory.0.set(memory.0.get() + 8);
        ring.drain(&memory).unwrap();
        session.rings = vec![ring];
        let said = session.over_budget().unwrap();
        assert!(
            said.starts_with("4194305 records in one trial, at most 4194304"),
            "{said}"
        );
    }

    #[test]
    fn rings_over_the_budget_are_not_read_on() {
        const LARGEST: u64 = MAX_DATA_PAGES as u64 * PAGE;
        const DATA: u64 = 0x10_000;
        let memory = Memory::new(4).unwrap();
        memory
            .write(DATA, &[1, 0, 0, 0, 0, 0, 8, 0].repeat(PAGE_SIZE / 8))
            .unwrap();
        let plan = crate::driver::announced::tests::plan();
        let mut session = AgentSession::new(&plan, 1);
        for number in 1..=5 {
            let control_page = number * PAGE;
            let head = control_page + DATA_HEAD;
            memory.write(head, &LARGEST.to_le_bytes()).unwrap();
            let ring = RingReader::new(&RingAnnounce {
                ring: 0,
                cpu: 0,
                control_page,
                data_pages: vec![DATA; MAX_DATA_PAGES],
                backward: false,
            });
            session.rings.push(ring.unwrap());
        }
        assert_eq!(
            session.within_budget(TrialEnd::Completed),
            TrialEnd::Completed
        );
        for _ in 0..2 {
            session.drain(&memory);
            let read = session.rings.iter().map(|ring| ring.bytes().len() as u64);
            assert_eq!(
                read.collect::<Vec<_>>(),
                [LARGEST, LARGEST, LARGEST, 0, 0],
                "the budget is exceeded by one ring"
            );
        }
        let said = "6291456 records in one trial, at most 4194304 are kept; shorten the trial";
        let what = said.to_owned();
        assert_eq!(
            session.within_budget(TrialEnd::Completed),
            TrialEnd::Misbehaved { what }
        );
        assert_eq!(session.within_budget(TrialEnd::Timeout), TrialEnd::Timeout);
    }

    #[test]
    fn what_is_over_its_limit_is_named() {
        assert_eq!(over([(1, 1, "a"), (2, 2, "b"), (3, 3, "c")]), None);
        for (used, word) in [
            ([(2, 1, "a"), (0, 2, "b"), (0, 3, "c")], "2 a "),
            ([(0, 1, "a"), (3, 2, "b"), (0, 3, "c")], "3 b "),
            ([(0, 1, "a"), (0, 2, "b"), (4, 3, "c")], "4 c "),
        ] {
            assert!(over(used).unwrap().starts_with(word));
        }
    }
}
