//! How long all invariants take on one trace, and whether that is in proportion to the trace.

use std::hint::black_box;

use super::decode::seconds;
use super::{Bench, Better, Line, PeerSeries, Promise, Row, RowError, number};
use crate::bench::series::Series;
use unwindlab_oracle::invariant::Evidence;
use unwindlab_oracle::trace::{Recording, Trace};

/// The part of the trace's records beside which the whole is measured: the first one in so many.
const PART: usize = 16;

impl Bench<'_> {
    pub(super) fn judge(&self, recording: &Result<Recording, RowError>) -> Line {
        let mut whole = Series::default();
        let mut part = Series::default();
        let mut notes = Vec::new();
        match recording {
            Ok(recording) => {
                let trace = Trace::decode(recording);
                let first = beginning(&trace);
                notes.push(format!(
                    "{}: {} invariants, {} records",
                    self.recorded.scenario,
                    self.judge.invariants.len(),
                    trace.events.len()
                ));
                for round in 0..self.rounds {
                    self.tell("judging", round);
                    whole.add(self.micros_per_record(&trace));
                    part.add(self.micros_per_record(&first));
                }
            }
            Err(why) => {
                whole.fail(why);
                part.fail(why);
            }
        }
        Line {
            row: Row::Judge,
            what: "all invariants on a trace, for each record",
            unit: "us",
            better: Better::Less,
            ours: whole,
            peer: Some(PeerSeries {
                name: "the first sixteenth of it",
                series: part,
            }),
            promises: vec![Promise::RatioAtMost(2.0)],
            notes,
            parameters: Vec::new(),
        }
    }

    fn micros_per_record(&self, trace: &Trace) -> f64 {
        let records = number(trace.events.len().max(1) as u64);
        1e6 * seconds(|| self.check_all(black_box(trace))) / records
    }

    fn check_all(&self, trace: &Trace) {
        let evidence = Evidence::new(trace);
        for invariant in self.judge.invariants {
            black_box(invariant.check(&evidence));
        }
    }
}

/// A trace with the first of its records only.
fn beginning(trace: &Trace) -> Trace {
    let mut first = trace.clone();
    first.events.truncate(trace.events.len() / PART);
    first
}
