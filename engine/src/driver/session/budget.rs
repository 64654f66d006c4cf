//! What a trial may take of the harness's memory, as far as no announcement bounds it. The guest writes as much as it
//! likes; a trial that takes more ends, with the number.

use unwindlab_abi::message::AgentMessage;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::ring::RingReader;

use super::AgentSession;
use crate::driver::error::SessionError;

/// Most bytes of records in all rings. A ring has a limit of its own, 64 MiB.
pub(crate) const RING_BYTES: usize = 256 << 20;
/// Most records in all rings: each becomes an event of some hundred bytes when the trace is decoded.
/// A minute of four clients has 0.2 million.
pub(crate) const RECORDS: usize = 4 << 20;
/// Most times that somebody waits for a page of a thread's stack, each with everybody's progress.
pub(crate) const BLOCKS: usize = 4096;

/// Most bytes of the messages with observations and surveyed places. Kept, they take up to ten times as much.
/// A thread that unwinds itself notes 512 stacks of 24 frames, each in three ways: less than 0.3 MiB.
pub(crate) const TOLD_BYTES: usize = 32 << 20;

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

    /// Counts a message, where what is in it is kept and no other budget bounds that.
    pub(super) fn weigh(
        &mut self,
        message: &AgentMessage,
        bytes: usize,
    ) -> Result<(), SessionError> {
        if let AgentMessage::Observed(_) | AgentMessage::Surveyed(_) = message {
            self.told = self.told.saturating_add(bytes);
        }
        match over([(self.told, TOLD_BYTES, "bytes of observations")]) {
            Some(what) => Err(SessionError::OverBudget(what)),
            None => Ok(()),
        }
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

    use unwindlab_abi::Observation;
    use unwindlab_abi::mailbox::{self, PAGE_SIZE};
    use unwindlab_abi::message::RingAnnounce;
    use unwindlab_abi::user_stack::{USER_STACK_PIECE, UserStack};
    use unwindlab_oracle::trace::ring::{DATA_HEAD, GuestRead, MAX_DATA_PAGES, NotGuestMemory};
    use unwindlab_vmm::Memory;

    use super::*;
    use crate::driver::conversation::{Heard, Said, hold};

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
    fn what_the_agent_tells_is_weighed() {
        let plan = crate::driver::announced::tests::plan();
        let mut session = AgentSession::new(&plan, 1);
        let seen = AgentMessage::Observed(Observation::Traced { thread: 0 });
        let places = AgentMessage::Surveyed(Vec::new());
        let log = AgentMessage::KernelLog(String::new());
        session.weigh(&seen, TOLD_BYTES - 1).unwrap();
        session.weigh(&log, TOLD_BYTES).unwrap();
        session.weigh(&places, 1).unwrap();
        let error = session.weigh(&seen, 1).unwrap_err().to_string();
        assert!(
            error.starts_with("33554433 bytes of observations in one trial, at most 33554432"),
            "{error}"
        );
    }

    /// What comes of these words behind a workload without threads.
    fn behind(told: impl IntoIterator<Item = AgentMessage>) -> Heard {
        let memory = Memory::new(4).unwrap();
        let mut plan = crate::driver::announced::tests::plan();
        plan.tracing.events.clear();
        plan.workload.threads = 0;
        let before = [
            AgentMessage::Hello {
                abi_version: unwindlab_abi::ABI_VERSION,
                release: String::new(),
                cpus: 1,
            },
            AgentMessage::Shared {
                pages: vec![0; unwindlab_abi::shared::PAGES],
            },
            AgentMessage::Symbols(Vec::new()),
            AgentMessage::Ready,
            AgentMessage::Finished {
                iterations: Vec::new(),
            },
        ];
        let said = before.into_iter().chain(told);
        let said = said.map(|it| Said::Message(mailbox::encode(&it).unwrap().into()));
        hold(&memory, &plan, 1, &said.collect::<Vec<_>>())
    }

    fn stacks(count: usize, frames: usize) -> AgentMessage {
        let stack = UserStack {
            thread: 0,
            cookie: 0,
            lost: 0,
            by_frame_pointers: vec![u64::MAX; frames],
            by_dwarf: Vec::new(),
            semantic: Vec::new(),
        };
        AgentMessage::Observed(Observation::UserStacks(vec![stack; count]))
    }

    #[test]
    fn an_agent_that_tells_too_much_misbehaves() {
        let told = stacks(1, 100_000);
        let bytes = mailbox::encode(&told).unwrap().len();
        let most = TOLD_BYTES / bytes;
        let tells = |times| behind(std::iter::repeat_n(told.clone(), times));
        assert_eq!(tells(most).end, None);
        let heard = tells(most + 1);
        assert_eq!(heard.recording.observations.len(), most);
        let what = format!(
            "{} bytes of observations in one trial, at most 33554432 are kept; shorten the trial",
            bytes * (most + 1)
        );
        assert_eq!(heard.end, Some(TrialEnd::Misbehaved { what }));
    }

    #[test]
    fn an_agent_tells_in_pieces() {
        assert_eq!(behind([stacks(USER_STACK_PIECE, 3)]).end, None);
        let what =
            "the agent tells of 33 stacks of its own at once, expected at most 32".to_owned();
        let end = behind([stacks(USER_STACK_PIECE + 1, 3)]).end;
        assert_eq!(end, Some(TrialEnd::Misbehaved { what }));
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
