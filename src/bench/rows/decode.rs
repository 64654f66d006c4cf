//! How fast the command decodes recorded ring buffers into events.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Bench, Better, Line, Row, RowError, number};
use crate::bench::series::Series;
use unwindlab_oracle::trace::{Recording, Trace};

/// How long a round repeats what it measures.
const ROUND: Duration = Duration::from_millis(300);

impl Bench<'_> {
    pub(super) fn decode(&self, recording: &Result<Recording, RowError>) -> [Line; 2] {
        let mut bytes = Series::default();
        let mut records = Series::default();
        let mut notes = Vec::new();
        match recording {
            Ok(recording) => {
                let (size, count) = (size(recording), Trace::decode(recording).events.len());
                notes.push(format!(
                    "{}: {count} records, {size} bytes; no peer: none reads rings out of guest memory",
                    self.recorded.scenario
                ));
                for round in 0..self.rounds {
                    self.tell("decoding", round);
                    let times = 1.0 / seconds(|| Trace::decode(black_box(recording)));
                    bytes.add(times * number(size) / 1e6);
                    records.add(times * number(count as u64) / 1e3);
                }
            }
            Err(why) => {
                bytes.fail(why);
                records.fail(why);
            }
        }
        let line = |what, unit, ours, notes| Line {
            row: Row::Decode,
            what,
            unit,
            better: Better::More,
            ours,
            peer: None,
            promises: Vec::new(),
            notes,
            parameters: Vec::new(),
        };
        [
            line("bytes of ring buffers decoded", "MB/s", bytes, notes),
            line("records decoded", "thousand a second", records, Vec::new()),
        ]
    }
}

fn size(recording: &Recording) -> u64 {
    let sizes = recording.ring_bytes.iter().map(|ring| ring.bytes.len());
    sizes.sum::<usize>() as u64
}

/// How long something takes, repeated for a round.
pub(super) fn seconds<T>(what: impl Fn() -> T) -> f64 {
    let begin = Instant::now();
    let mut times = 0.0;
    while begin.elapsed() < ROUND {
        black_box(what());
        times += 1.0;
    }
    begin.elapsed().as_secs_f64() / times
}
