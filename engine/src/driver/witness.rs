//! The witness: notes of all returns to user mode, with what was written by then.
//!
//! The vCPUs' threads make the notes without stopping ([`Machine::watch_returns`]); what is in them
//! is decided here. Which task returned is told by its `pid` in the kernel's `task_struct`. Where
//! that is there follows from the workload: a thread that makes its arm mark is current, and the
//! agent has announced its ids. They are in `task_struct` next to each other (`pid_t pid, tgid`,
//! include/linux/sched.h), so the field is among the places where both are; if there is only one,
//! it is that.
//!
//! [`Machine::watch_returns`]: unwindlab_vmm::Machine::watch_returns

use unwindlab_oracle::trace::tracefs::Position;
use unwindlab_oracle::trace::witness::{UserReturn, Witness, Written};
use unwindlab_vmm::{ReturnNote, ReturnWatch};

use super::{Driver, DriverError};
use crate::plan::WitnessPlan;

/// Bytes of a `task_struct` in which its ids are looked for. It has 10 KiB in Debian's 7.3.
const TASK: usize = 12 << 10;
/// Why the witness is incomplete.
const TOO_MANY: &str = "there were more returns than it notes";

/// The witness of a trial.
#[derive(Debug, Default)]
pub(super) struct WitnessState {
    plan: Option<WitnessPlan>,
    /// Where the ids of a task may be, once a task was looked at.
    candidates: Option<Vec<u64>>,
    /// Where the pid of a task is, once that is known.
    task_pid: Option<u64>,
    /// The returns that were noted, as long as tasks can be told apart.
    seen: Option<Witness>,
    /// Notes are being made.
    is_on: bool,
    why_not: Option<String>,
}

impl WitnessState {
    pub(super) fn new(plan: Option<&WitnessPlan>) -> Self {
        Self {
            plan: plan.cloned(),
            ..Self::default()
        }
    }
}

impl Driver {
    /// Begins to note returns, if that is planned. All rings are announced by now.
    pub(super) fn begin_witness(&mut self) -> Result<(), DriverError> {
        let Some(plan) = self.witness.plan.clone() else {
            return Ok(());
        };
        let (mut words, log) = self.session.head_words();
        words.extend(log);
        let watched = self.machine.watch_returns(ReturnWatch {
            sites: plan.sites,
            current: self.symbols.current_task,
            words,
            filled: self.session.tracefs_words(),
            most: usize::try_from(plan.most).unwrap_or(usize::MAX),
        });
        match watched {
            Ok(()) => self.witness.is_on = true,
            Err(error) => {
                self.witness.why_not = Some(error.to_string());
                return Ok(());
            }
        }
        match plan.task_pid.or(self.witness.task_pid) {
            Some(offset) => self.tell_tasks_by(offset),
            None => Ok(()),
        }
    }

    /// From now on a note has its task's pid, which is at this offset. Earlier notes say of no task
    /// whose they are.
    fn tell_tasks_by(&mut self, offset: u64) -> Result<(), DriverError> {
        self.witness.task_pid = Some(offset);
        self.while_all_stopped(|driver| {
            driver.machine.note_field(offset);
            driver.begin_trial_witness(driver.written());
            Ok(())
        })
    }

    /// How much is written now.
    pub fn written(&self) -> Written {
        let (rings, log) = self.session.head_words();
        let memory = self.machine.memory();
        let load = |at: u64| memory.load_u64(at).unwrap_or(0);
        let buffers = self.session.tracefs_positions(memory);
        let buffers = buffers.iter().map(Position::offset);
        let heads = rings.into_iter().map(load).chain(buffers);
        Written {
            heads: self.session.forwards(heads),
            log: log.map_or(0, load),
        }
    }

    /// Where the pid of a task is, if the witness knows.
    pub fn task_pid(&self) -> Option<u64> {
        self.witness.task_pid
    }

    /// Takes over what the witness of another machine knows, and begins one on this machine, whose
    /// guest is that one's.
    pub fn continue_witness(&mut self, task_pid: Option<u64>) -> Result<(), DriverError> {
        self.witness.task_pid = task_pid;
        match task_pid {
            Some(_) => self.begin_witness(),
            None => Ok(()),
        }
    }

    /// Forgets what was noted before: no task has returned between `begin` and now, on a machine
    /// that stands still.
    pub fn begin_trial_witness(&mut self, begin: Written) {
        if self.witness.is_on && self.witness.task_pid.is_some() {
            self.machine.take_returns();
            self.witness.seen = Some(Witness {
                begin,
                ..Witness::default()
            });
        }
    }

    /// What was noted since [`Self::begin_trial_witness`], once the rings are read; nothing where
    /// there is no witness.
    pub fn end_trial_witness(&mut self) -> Option<Witness> {
        if !self.witness.is_on {
            return None;
        }
        let full = self.collect();
        let mut witness = self.witness.seen.take()?;
        witness.why_not = match full {
            true => Some(TOO_MANY.to_owned()),
            false => self.witness.why_not.take(),
        };
        witness.complete = witness.why_not.is_none();
        Some(witness)
    }

    /// A workload thread is current: finds out where the ids of a task are, unless that is known.
    pub(super) fn identify_tasks(&mut self, vcpu: u8, thread: u32) -> Result<(), DriverError> {
        if !self.witness.is_on || self.witness.seen.is_some() {
            return Ok(());
        }
        let threads = self.session.recording.threads.iter();
        let Some(ids) = { threads }.find(|it| it.thread == thread) else {
            return Ok(());
        };
        let (tid, tgid) = ((ids.tid != 0).then_some(ids.tid), ids.pid);
        let task = self.current_task(vcpu)?;
        let mut bytes = vec![0; TASK];
        self.vcpu(vcpu)?.read_virt(task, &mut bytes)?;
        let found = places(&bytes, tid, tgid);
        let candidates = match self.witness.candidates.take() {
            Some(before) => before.into_iter().filter(|it| found.contains(it)).collect(),
            None => found,
        };
        if let [only] = candidates.as_slice() {
            self.tell_tasks_by(*only)?;
        }
        self.witness.candidates = Some(candidates);
        Ok(())
    }

    /// Ends the witness where there were more returns than it notes.
    pub fn check_witness(&mut self) -> Result<(), DriverError> {
        if self.witness.is_on && self.machine.returns_are_full() {
            return self.end_witness(TOO_MANY);
        }
        Ok(())
    }

    /// Notes no more returns.
    pub(super) fn end_witness(&mut self, why: &str) -> Result<(), DriverError> {
        self.collect();
        self.witness.is_on = false;
        self.witness.why_not.get_or_insert_with(|| why.to_owned());
        Ok(self.machine.end_returns()?)
    }

    /// What the witness has seen, once the rings are read for the last time; nothing where there
    /// was to be none.
    pub(super) fn close_witness(&mut self) -> Option<Witness> {
        self.witness.plan.as_ref()?;
        let full = self.collect();
        if self.witness.is_on
            && let Err(error) = self.machine.end_returns()
        {
            tracing::debug!(%error, "witness");
        }
        let mut witness = self.witness.seen.take().unwrap_or_else(|| Witness {
            why_not: Some("no task could be told from another".to_owned()),
            ..Witness::default()
        });
        if full {
            let why = || TOO_MANY.to_owned();
            self.witness.why_not.get_or_insert_with(why);
        }
        witness.why_not = self.witness.why_not.take().or(witness.why_not);
        witness.complete = witness.why_not.is_none();
        Some(witness)
    }

    /// Takes the notes that were made; whether there were more.
    fn collect(&mut self) -> bool {
        let (notes, full) = self.machine.take_returns();
        let rings = self.session.recording.rings.len();
        let state = &mut self.witness;
        if let Some(seen) = &mut state.seen {
            // Behind a return of nobody knows whom, some of a task may be missing.
            let known = { notes.iter() }.take_while(|_| state.why_not.is_none());
            let known = { known }.map_while(|note| user_return(note, rings));
            let mut count = 0;
            let known = { known.inspect(|_| count += 1) }
                .flatten()
                .map(|it| UserReturn {
                    heads: self.session.forwards(it.heads),
                    ..it
                });
            seen.returns.extend(known);
            if count < notes.len() {
                let why = || "the task of a return could not be read".to_owned();
                state.why_not.get_or_insert_with(why);
            }
        }
        full
    }
}

/// Where a task has its ids: this `pid` (any, if it is not known), and this `tgid` behind it.
fn places(task: &[u8], tid: Option<u32>, tgid: u32) -> Vec<u64> {
    let (words, _) = task.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|it| u32::from_le_bytes(*it)).collect();
    let pairs = (0_u64..).step_by(4).zip(words.windows(2));
    let is_place = |pair: &[u32]| match pair {
        [pid, group] => *group == tgid && tid.is_none_or(|tid| *pid == tid),
        _ => false,
    };
    pairs
        .filter(|(_, pair)| is_place(pair))
        .map(|(at, _)| at)
        .collect()
}

/// The return of a note, none where no user instruction follows; `None` where nobody knows whose it
/// is.
fn user_return(note: &ReturnNote, rings: usize) -> Option<Option<UserReturn>> {
    let words = note.words.iter().copied();
    let tid = note.field?;
    let buffers = note.filled.iter();
    let buffers = buffers.map(|(number, word)| Position::at(*number, *word).offset());
    Some((!note.interrupted).then(|| UserReturn {
        vcpu: u32::from(note.vcpu),
        tid,
        heads: words.clone().take(rings).chain(buffers).collect(),
        log: { words }.nth(rings).unwrap_or(0),
        rip: note.rip,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_a_task_are_next_to_each_other() {
        let words = [7_u32, 33, 1, 0, 1, 33, 33, 1, 2];
        let task: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(places(&task, Some(33), 1), [4, 24]);
        assert_eq!(places(&task, None, 1), [4, 12, 24]);
        assert_eq!(places(&task, Some(2), 3), [0; 0]);
    }

    #[test]
    fn a_note_has_the_heads_of_all_rings_and_then_of_the_log() {
        let note = ReturnNote {
            vcpu: 1,
            current: 0,
            field: Some(33),
            interrupted: false,
            rip: 0x40,
            words: vec![8, 16, 3],
            filled: Vec::new(),
        };
        let (heads, log) = (vec![8, 16], 3);
        let noted = UserReturn {
            vcpu: 1,
            tid: 33,
            heads,
            log,
            rip: 0x40,
        };
        assert_eq!(user_return(&note, 2), Some(Some(noted)));
        let without = user_return(&note, 3).unwrap().unwrap();
        assert_eq!(without.log, 0, "without a log");
        let interrupted = ReturnNote {
            interrupted: true,
            ..note.clone()
        };
        assert_eq!(user_return(&interrupted, 2), Some(None));
        let of_nobody = ReturnNote {
            field: None,
            ..note
        };
        assert_eq!(user_return(&of_nobody, 2), None);
    }
}
