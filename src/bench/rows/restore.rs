//! Putting a machine back to its state at the agent's first word, after it ran for a while.

use super::{Bench, Better, Line, PeerSeries, Promise, QEMU, Row, RowError, number};
use crate::bench::series::{Series, Spread};
use unwindlab_engine::plan::measurement::{MeasuredFigures, Measurement, Vmm};

/// Milliseconds that a machine runs before it is stopped and put back, about as long as in a trial
/// of a sweep.
const RUN_MS: u64 = 2;
/// Restores of ours in a round.
const OURS: u32 = 100;
/// Restores of QEMU's in a round; each reads the whole RAM.
const QEMUS: u32 = 5;

impl Bench<'_> {
    pub(super) fn restore(&mut self) -> Line {
        let mut ours = Series::default();
        let mut peer = self.series_of_peer();
        let mut pages = Vec::new();
        let mut askings = Vec::new();
        for round in 0..self.rounds {
            self.tell("restoring", round);
            for vmm in self.turns(round) {
                let machine = self.machine.clone();
                let (series, times) = match vmm {
                    Vmm::Ours => (&mut ours, OURS),
                    Vmm::Qemu => (&mut peer, QEMUS),
                };
                let measurement = Measurement::Restore {
                    vmm,
                    machine,
                    times,
                    run_ms: RUN_MS,
                };
                series.take(|| match self.bench(&measurement)? {
                    MeasuredFigures::Restored {
                        micros,
                        copied,
                        asking,
                    } => {
                        pages.extend(copied.into_iter().map(number));
                        askings.extend(asking.map(|micros| number(micros) / 1e3));
                        let millis: Vec<f64> =
                            micros.into_iter().map(|it| number(it) / 1e3).collect();
                        let spread = Spread::of(&millis).ok_or(RowError::NoRestore)?;
                        Ok(spread.median)
                    }
                    other => Err(RowError::OtherAnswer(other)),
                });
            }
        }
        let mut notes = Vec::new();
        if let Some(pages) = Spread::of(&pages) {
            let Spread { median, min, max } = pages;
            notes.push(format!(
                "ours copies {median:.0} pages ({min:.0} to {max:.0}), after {RUN_MS} ms each time"
            ));
        }
        if let Some(asking) = Spread::of(&askings) {
            let median = asking.median;
            notes.push(format!(
                "of QEMU's (savevm, loadvm; the image is in memory) {median:.2} ms are its monitor's"
            ));
        }
        Line {
            row: Row::Restore,
            what: "putting a stopped machine back (of each round the median)",
            unit: "ms",
            better: Better::Less,
            ours,
            peer: Some(PeerSeries {
                name: QEMU,
                series: peer,
            }),
            promises: vec![Promise::AtMost(1.0)],
            notes,
            parameters: Vec::new(),
        }
    }
}
