//! What the guest puts out where the agent has announced it: rings of perf, the lab client's log, buffers of tracefs,
//! results of unwinding in user mode, progress counters.

use std::slice::from_ref;

use unwindlab_abi::lab::HEAD_OFFSET;
use unwindlab_abi::message::RingAnnounce;
use unwindlab_oracle::trace::framing::Records;
use unwindlab_oracle::trace::lab::LabLog;
use unwindlab_oracle::trace::lab::reader;
use unwindlab_oracle::trace::ring::{DATA_HEAD, RingReader};
use unwindlab_oracle::trace::tracefs::{Position, TracefsHeld};
use unwindlab_oracle::trace::user_mode::UserModeLog;
use unwindlab_vmm::Memory;

use super::AgentSession;
use super::budget::Held;
use crate::driver::error::SessionError;
use crate::driver::guest_memory::Ram;
use crate::plan::EventPlan;

/// How far the output of a guest was looked at.
#[derive(Debug, Default)]
pub(crate) struct OutputCursor {
    /// By ring, in bytes.
    rings: Vec<usize>,
    /// In slots of the lab client's log.
    lab: u64,
}

impl AgentSession {
    /// Reads what is new in every ring. A ring that stops making sense marks itself as corrupt;
    /// the others are read on. Behind the ring that exceeds the budget none is: the trial is over then.
    pub fn drain(&mut self, memory: &Memory) {
        let mut held = Held::of(&self.rings);
        for ring in &mut self.rings {
            if held.over_budget().is_some() {
                return;
            }
            let before = Held::of(from_ref(ring));
            if let Err(error) = ring.drain(&Ram(memory)) {
                tracing::debug!(%error, "ring");
            }
            held.grow(before, Held::of(from_ref(ring)));
        }
    }

    /// The heads of all rings, in streams that count up. Whatever is behind them stays as it is.
    pub fn forwards(&self, heads: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut heads: Vec<u64> = heads.into_iter().collect();
        for (ring, head) in self.recording.rings.iter().zip(&mut heads) {
            if ring.backward {
                *head = head.wrapping_neg();
            }
        }
        heads
    }

    /// What is new behind the cursor in the rings as far as they were drained, and in the lab
    /// client's log; each with its CPU, which the machine has.
    pub fn seen(
        &self,
        memory: &Memory,
        cursor: &mut OutputCursor,
    ) -> Result<Vec<(EventPlan, u8)>, SessionError> {
        cursor.rings.resize(self.rings.len(), 0);
        let mut seen = Vec::new();
        let cpus = self.recording.rings.iter().map(|ring| ring.cpu);
        for ((ring, from), cpu) in self.rings.iter().zip(&mut cursor.rings).zip(cpus) {
            let cpu = u8::try_from(cpu).unwrap_or(0);
            let mut records = Records::new(ring.bytes().get(*from..).unwrap_or_default());
            seen.extend(
                { &mut records }
                    .map_while(Result::ok)
                    .map(|record| (EventPlan::Record(record.record_type), cpu)),
            );
            *from += records.offset();
        }
        while let Some((kind, cpu)) = reader::slot(&Ram(memory), &self.lab_pages, cursor.lab) {
            cursor.lab += 1;
            if u32::from(cpu) >= self.recording.vcpus {
                return Err(SessionError::Cpu(cpu));
            }
            seen.push((EventPlan::Lab(kind), cpu));
        }
        Ok(seen)
    }

    /// Reads the lab client's log into the recording. The end of the trial is early enough: the
    /// log is never written over.
    pub fn read_lab(&mut self, memory: &Memory) {
        self.recording.lab = self.lab_from(memory, 0);
    }

    /// Reads what unwinding in user mode wrote into the recording. Nothing is written over.
    pub fn read_user_mode(&mut self, memory: &Memory) {
        let announced = self.user_mode.as_ref();
        let read = announced.map(|it| UserModeLog::read(&Ram(memory), it));
        self.recording.user_mode = read;
    }

    /// Reads the mapped buffers of tracefs into the recording. Nothing is written over.
    pub fn read_tracefs(&mut self, memory: &Memory) {
        let held = self.tracefs_behind(memory, &[]);
        if let (Some(log), Some(held)) = (&mut self.recording.tracefs, held) {
            log.held = held;
        }
    }

    /// Guest-physical addresses of the words that say how far each sub-buffer of each mapped buffer of tracefs is written.
    pub fn tracefs_words(&self) -> Vec<Vec<u64>> {
        self.tracefs.iter().map(Position::words).collect()
    }

    /// How far each mapped buffer of tracefs is written.
    pub fn tracefs_positions(&self, memory: &Memory) -> Vec<Position> {
        let buffers = self.tracefs.iter();
        buffers
            .map(|it| Position::of(&Ram(memory), it).unwrap_or_default())
            .collect()
    }

    /// What the mapped buffers of tracefs hold behind these positions; `None` where there are none.
    pub fn tracefs_behind(&self, memory: &Memory, behind: &[Position]) -> Option<TracefsHeld> {
        let held = || TracefsHeld::read(&Ram(memory), &self.tracefs, behind);
        // They were in RAM when they were announced.
        (!self.tracefs.is_empty()).then(|| held().unwrap_or_default())
    }

    /// The lab client's log from this slot on; `None` where the kernel has no lab client.
    pub fn lab_from(&self, memory: &Memory, first: u64) -> Option<LabLog> {
        let announced = !self.lab_pages.is_empty();
        announced.then(|| LabLog::read_from(&Ram(memory), &self.lab_pages, first))
    }

    /// Pages that the kernel fills for readers: the data of all rings, and the slots of the lab
    /// client's log.
    pub fn output_pages(&self) -> impl Iterator<Item = u64> {
        let rings = self.recording.rings.iter().flat_map(|it| &it.data_pages);
        rings.chain(self.lab_pages.iter().skip(1)).copied()
    }

    /// Guest-physical addresses of `data_head` of every ring, and of the head of the lab client's
    /// log, if there is one.
    pub fn head_words(&self) -> (Vec<u64>, Option<u64>) {
        let rings = self.recording.rings.iter();
        let log = self.lab_pages.first();
        (
            rings.map(|ring| ring.control_page + DATA_HEAD).collect(),
            log.map(|control| control + HEAD_OFFSET as u64),
        )
    }

    /// `data_head` of every ring.
    pub fn heads(&self, memory: &Memory) -> Vec<u64> {
        let head = |ring: &RingAnnounce| memory.load_u64(ring.control_page + DATA_HEAD);
        let rings = self.recording.rings.iter();
        rings.map(|ring| head(ring).unwrap_or(0)).collect()
    }

    /// Records in every ring so far.
    pub fn ring_records(&self) -> Vec<usize> {
        self.rings.iter().map(RingReader::records).collect()
    }

    /// The progress counters of all workload threads as they stand in guest memory.
    pub fn progress(&self, memory: &Memory) -> Vec<u64> {
        let threads = self.recording.threads.iter();
        threads
            .map(|it| self.shared.progress(memory, it.thread).unwrap_or(0))
            .collect()
    }
}
