//! How long all invariants take on one trace.

use std::hint::black_box;

use super::decode::seconds;
use super::{Bench, Line, Row, RowError};
use crate::bench::series::Series;
use unwindlab_oracle::invariant::Evidence;
use unwindlab_oracle::trace::{Recording, Trace};

impl Bench<'_> {
    pub(super) fn judge(&self, recording: &Result<Recording, RowError>) -> Line {
        let mut millis = Series::default();
        let mut notes = Vec::new();
        match recording {
            Ok(recording) => {
                let trace = Trace::decode(recording);
                notes.push(format!(
                    "{}: {} invariants, {} events",
                    self.recorded.scenario,
                    self.invariants.len(),
                    trace.events.len()
                ));
                for round in 0..self.rounds {
                    self.tell("judging", round);
                    millis.add(1e3 * seconds(|| self.check_all(black_box(&trace))));
                }
            }
            Err(why) => millis.fail(why),
        }
        Line {
            row: Row::Judge,
            what: "all invariants on a trace",
            unit: "ms",
            ours: millis,
            peer: None,
            promises: Vec::new(),
            notes,
        }
    }

    fn check_all(&self, trace: &Trace) {
        let evidence = Evidence::new(trace);
        for invariant in self.invariants {
            black_box(invariant.check(&evidence));
        }
    }
}
