//! How fast recorded ring buffers become events. It is done by the command, not in the KVM host.

use std::time::{Duration, Instant};

use super::{Bench, Line, Row, number};
use crate::bench::series::Series;
use crate::plan::Progress;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::{Recording, Trace};

/// How long a round decodes, again and again.
const ROUND: Duration = Duration::from_millis(300);

impl Bench<'_> {
    pub(super) fn decode(&mut self) -> [Line; 2] {
        let mut bytes = Series::default();
        let mut records = Series::default();
        let mut notes = Vec::new();
        match self.recording() {
            Ok(recording) => {
                let (size, count) = (size(&recording), Trace::decode(&recording).events.len());
                notes.push(format!(
                    "{}: {count} records, {size} bytes; no peer: none reads rings out of guest memory",
                    self.recorded.scenario
                ));
                for round in 0..self.rounds {
                    self.tell("decoding", round);
                    let times = times_a_second(&recording);
                    bytes.take(|| Ok(times * number(size) / 1e6));
                    records.take(|| Ok(times * number(count as u64) / 1e3));
                }
            }
            Err(why) => {
                bytes = Series::impossible(&why);
                records = Series::impossible(&why);
            }
        }
        let line = |what, unit, ours, notes| Line {
            row: Row::Decode,
            what,
            unit,
            ours,
            peer: None,
            promises: Vec::new(),
            notes,
        };
        [
            line("bytes of ring buffers decoded", "MB/s", bytes, notes),
            line("records decoded", "thousand a second", records, Vec::new()),
        ]
    }

    fn recording(&mut self) -> Result<Recording, String> {
        let progress: &dyn Progress = self.progress;
        let recording = self.executor.run(&self.recorded, progress);
        let recording = recording.map_err(|error| error.reason)?;
        match recording.end {
            TrialEnd::Completed => Ok(recording),
            end => Err(format!("the trial to be decoded ended with {end:?}")),
        }
    }
}

fn size(recording: &Recording) -> u64 {
    let sizes = recording.ring_bytes.iter().map(|ring| ring.bytes.len());
    sizes.sum::<usize>() as u64
}

fn times_a_second(recording: &Recording) -> f64 {
    let begin = Instant::now();
    let mut times = 0.0;
    while begin.elapsed() < ROUND {
        std::hint::black_box(Trace::decode(std::hint::black_box(recording)));
        times += 1.0;
    }
    times / begin.elapsed().as_secs_f64()
}
