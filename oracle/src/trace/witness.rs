//! Returns to user mode, as the VMM noted them from outside: what was already written when each
//! happened.
//!
//! A kernel that answers a request late, after the task has been in user mode again, writes the
//! same records as one that answers in time. Only somebody who sees the task leave the kernel can
//! tell the two apart.
//!
//! # How a return is noted
//!
//! The VMM itself executes each instruction by which the kernel returns to user mode. Just before,
//! with the vCPU stopped at that instruction, it reads which task is current there, the
//! `data_head` of every ring, how far each mapped buffer of tracefs is written, and the head of the lab client's log. Nothing happens on that vCPU
//! between the reading and the first user instruction, or the interrupt that comes in its place.
//!
//! A return with an interrupt or NMI pending that is taken before the first user instruction is left
//! out: it is as if the task had not left the kernel. (A request from an NMI behind the exit loop,
//! or in user mode, is answered so: the NMI sends its CPU an interrupt, which waits until `iret`
//! enables interrupts. KVM gives a vCPU what waits before it enters the guest.) What becomes pending
//! between the look and that entry, from another CPU or a timer, is not seen: such a return is noted
//! though no user instruction followed.
//!
//! # Why a record *of that task* is placed exactly
//!
//! A record is of the task that was current where it was written: samples, chains (record 22), and
//! the lab client's requests, callbacks and returns. Let T return on vCPU V.
//!
//! - *In a ring of V*: `perf_output_begin()` disables preemption and `perf_output_put_handle()`
//!   publishes `data_head` when the outermost writer on that CPU is done. An NMI's record, written
//!   while another is, is thus in the buffer before `data_head` shows it, but the writer that it
//!   interrupted ends before the CPU can come to a return to user mode. So at T's return no writer is active on
//!   V, and `data_head` shows all that was written.
//! - *In the ring of another CPU*: T wrote there before it migrated. It did so with preemption
//!   disabled, so the writer, and any that it interrupted, published before T left that CPU. What
//!   T writes there later, it writes after this return. What other tasks write there meanwhile
//!   only moves `data_head` on, past no record of T.
//! - *In the lab client's log*: a slot is reserved by one atomic addition to the head, by the
//!   task, or by an NMI or interrupt on its CPU, which is over by then. So T's slots below the head
//!   are those that T reserved before, all of them finished.
//! - *In a buffer of tracefs*: as in a ring. `ring_buffer_lock_reserve()` disables preemption, and the outermost writer on
//!   that CPU brings the words of committed bytes up to the last event (`rb_end_commit()`, `rb_set_commit_to_write()`,
//!   kernel/trace/ring_buffer.c, 7.3). Nobody reads the buffer and it does not overwrite, so that its sub-buffers fill in
//!   their order.
//!
//! So a record of T that ends at or below the head was written before the return, and any other
//! one after it. Of records of other tasks only one direction holds: what ends at or below the
//! head was written before the return.
//!
//! A ring whose event is bound to a task instead of a CPU has one writer at a time too: the task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lab::LabEvent;
use super::model::Event;

/// How much had been written at some moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    /// `data_head` of every ring, in the order of [`Trace::rings`](super::Trace::rings); behind them how far each mapped
    /// buffer of tracefs was written, as [`Position::offset`](super::tracefs::Position::offset) says.
    pub heads: Vec<u64>,
    /// Slots of the lab client's log that were reserved; 0 without a log.
    pub log: u64,
}

/// One return of a task to user mode, with nothing pending that would interrupt it at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserReturn {
    /// The vCPU.
    pub vcpu: u32,
    /// The task.
    pub tid: u32,
    /// As [`Written::heads`].
    pub heads: Vec<u64>,
    /// Slots of the lab client's log that were reserved; 0 without a log.
    pub log: u64,
    /// The first user instruction.
    #[serde(default)]
    pub rip: u64,
}

/// All returns to user mode that were noted, of all tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Witness {
    /// What was written before the first return that could be noted.
    pub begin: Written,
    /// In the order in which they were noted: each task's own are in order, and so are each
    /// vCPU's. No return is missing before the last one.
    pub returns: Vec<UserReturn>,
    /// No return is missing after the last one either.
    pub complete: bool,
    /// Why returns are missing after the last one.
    pub why_not: Option<String>,
}

/// Where a record of a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordAt {
    /// In a ring: its index in [`Trace::rings`](super::Trace::rings), and where the record begins
    /// and ends, counted as `data_head` is.
    Ring {
        /// The ring.
        ring: usize,
        /// Its first byte.
        start: u64,
        /// Behind its last byte.
        end: u64,
    },
    /// In a slot of the lab client's log.
    Slot(u64),
}

impl RecordAt {
    /// Where a record of a ring is.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self::Ring {
            ring: event.ring_index,
            start: event.start,
            end: event.end(),
        }
    }

    /// Where a record of the lab client is.
    #[must_use]
    pub const fn of_lab(event: &LabEvent) -> Self {
        Self::Slot(event.slot)
    }

    /// Whether it was written by then; `None` where that was not read.
    fn is_in(self, heads: &[u64], log: u64) -> Option<bool> {
        match self {
            Self::Ring { ring, end, .. } => heads.get(ring).map(|head| end <= *head),
            Self::Slot(slot) => Some(slot < log),
        }
    }

    /// Whether all of it was written later; `None` where that was not read.
    fn is_after(self, written: &Written) -> Option<bool> {
        match self {
            Self::Ring { ring, start, .. } => written.heads.get(ring).map(|head| start >= *head),
            Self::Slot(slot) => Some(slot >= written.log),
        }
    }
}

impl UserReturn {
    /// Whether a record *of the task that returned* was written before the return; otherwise it was
    /// written after it. `None` where the ring was not looked at.
    #[must_use]
    pub fn comes_after(&self, record: RecordAt) -> Option<bool> {
        record.is_in(&self.heads, self.log)
    }
}

impl Witness {
    /// How often task `tid` returned to user mode between two of its own records. `None` where that
    /// is not known: the first was written before the witness began, or the second after it ended.
    #[must_use]
    pub fn returns_between(&self, tid: u32, from: RecordAt, to: RecordAt) -> Option<usize> {
        if !from.is_after(&self.begin)? || !self.covers(to)? {
            return None;
        }
        let mut between = 0;
        for one in self.returns.iter().filter(|it| it.tid == tid) {
            between += usize::from(one.comes_after(from)? && !one.comes_after(to)?);
        }
        Some(between)
    }

    /// Whether all returns before this record are noted. What the last note shows was written
    /// before it, and no return before that is missing.
    fn covers(&self, record: RecordAt) -> Option<bool> {
        if self.complete {
            return Some(true);
        }
        match self.returns.last() {
            Some(last) => record.is_in(&last.heads, last.log),
            None => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ring: usize, start: u64) -> RecordAt {
        let end = start + 8;
        RecordAt::Ring { ring, start, end }
    }

    fn note(tid: u32, heads: &[u64], log: u64) -> UserReturn {
        let heads = heads.to_vec();
        let vcpu = 0;
        UserReturn {
            vcpu,
            tid,
            heads,
            log,
            rip: 0,
        }
    }

    fn witness(returns: Vec<UserReturn>) -> Witness {
        Witness {
            begin: Written {
                heads: vec![8, 0],
                log: 2,
            },
            returns,
            complete: true,
            why_not: None,
        }
    }

    #[test]
    fn a_return_counts_where_one_record_was_there_and_the_other_was_not() {
        let seen = witness(vec![
            note(7, &[16, 0], 3),
            note(9, &[24, 8], 3),
            note(7, &[32, 8], 4),
        ]);
        let between = |from, to| seen.returns_between(7, from, to);
        assert_eq!(between(at(0, 8), at(0, 16)), Some(1));
        assert_eq!(
            between(at(0, 16), at(0, 24)),
            Some(0),
            "only of another task"
        );
        assert_eq!(between(at(0, 8), at(0, 32)), Some(2));
        assert_eq!(between(at(0, 8), at(1, 0)), Some(1), "in another ring");
        assert_eq!(between(RecordAt::Slot(2), RecordAt::Slot(3)), Some(1));
        assert_eq!(between(RecordAt::Slot(3), RecordAt::Slot(3)), Some(0));
        assert_eq!(between(RecordAt::Slot(2), at(0, 32)), Some(2));
        assert_eq!(seen.returns_between(8, at(0, 8), at(0, 32)), Some(0));
    }

    #[test]
    fn what_was_written_before_it_began_is_not_known() {
        let seen = witness(vec![note(7, &[16, 0], 3)]);
        assert_eq!(seen.returns_between(7, at(0, 0), at(0, 16)), None);
        let slot = RecordAt::Slot(1);
        assert_eq!(seen.returns_between(7, slot, at(0, 16)), None);
        let straddles = RecordAt::Ring {
            ring: 0,
            start: 4,
            end: 12,
        };
        assert_eq!(seen.returns_between(7, straddles, at(0, 16)), None);
        assert_eq!(
            seen.returns_between(7, at(2, 8), at(0, 16)),
            None,
            "no ring"
        );
    }

    #[test]
    fn what_was_written_after_it_ended_is_not_known() {
        let mut seen = witness(vec![note(7, &[16, 0], 3), note(9, &[32, 0], 3)]);
        seen.complete = false;
        assert_eq!(seen.returns_between(7, at(0, 8), at(0, 16)), Some(1));
        assert_eq!(seen.returns_between(7, at(0, 8), at(0, 24)), Some(1));
        assert_eq!(seen.returns_between(7, at(0, 8), at(0, 32)), None);
        assert_eq!(seen.returns_between(7, at(0, 8), RecordAt::Slot(3)), None);
        seen.returns.clear();
        assert_eq!(seen.returns_between(7, at(0, 8), at(0, 16)), None);
    }
}
