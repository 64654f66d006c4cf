//! The time from machine start to agent ready, and the VMM's memory then: one start gives both.

use super::{Bench, Better, Line, PeerSeries, Promise, QEMU, Row, RowError, number};
use crate::bench::series::{Series, Spread};
use unwindlab_engine::plan::measurement::{MeasuredFigures, Measurement, Vmm};

/// The numbers of one VMM.
struct Starts {
    seconds: Series,
    beyond_mib: Series,
    guest_mib: Vec<f64>,
    anonymous_mib: Vec<f64>,
}

impl Starts {
    fn new(empty: &Series) -> Self {
        Self {
            seconds: empty.clone(),
            beyond_mib: empty.clone(),
            guest_mib: Vec::new(),
            anonymous_mib: Vec::new(),
        }
    }

    fn take(&mut self, started: Result<MeasuredFigures, RowError>) {
        let error = match started {
            Ok(MeasuredFigures::Started {
                micros,
                beyond_kib,
                guest_kib,
                anonymous_kib,
            }) => {
                self.seconds.add(number(micros) / 1e6);
                self.beyond_mib.add(mib(beyond_kib));
                self.guest_mib.push(mib(guest_kib));
                self.anonymous_mib.push(mib(anonymous_kib));
                return;
            }
            Ok(other) => RowError::OtherAnswer(other),
            Err(error) => error,
        };
        self.seconds.fail(&error);
        self.beyond_mib.fail(&error);
    }

    /// What the memory consists of, in words.
    fn memory(&self, who: &str) -> Option<String> {
        let guest = Spread::of(&self.guest_mib)?.median;
        let anonymous = Spread::of(&self.anonymous_mib)?.median;
        Some(format!(
            "{who}: {anonymous:.1} MiB of it belong to no file; {guest:.0} MiB of the guest's RAM are resident"
        ))
    }
}

/// KiB in MiB.
fn mib(kib: u64) -> f64 {
    number(kib) / 1024.0
}

impl Bench<'_> {
    pub(super) fn starts(&mut self) -> [Line; 2] {
        let mut ours = Starts::new(&Series::default());
        let mut peer = Starts::new(&self.series_of_peer());
        for round in 0..self.rounds {
            self.tell("machine start to agent ready", round);
            for vmm in self.turns(round) {
                let machine = self.machine.clone();
                let starts = match vmm {
                    Vmm::Ours => &mut ours,
                    Vmm::Qemu => &mut peer,
                };
                if starts.seconds.failed.is_none() {
                    starts.take(self.bench(&Measurement::Start { vmm, machine }));
                }
            }
        }
        let memory = [ours.memory("ours"), peer.memory(QEMU)];
        let of_qemu = |series| Some(PeerSeries { name: QEMU, series });
        [
            Line {
                row: Row::Boot,
                what: "start of the VMM's process to the agent's first word",
                unit: "s",
                better: Better::Less,
                ours: ours.seconds,
                peer: of_qemu(peer.seconds),
                promises: vec![Promise::RatioAtMost(0.5)],
                notes: Vec::new(),
                parameters: Vec::new(),
            },
            Line {
                row: Row::Memory,
                what: "resident memory of the VMM's process beyond the guest's RAM",
                unit: "MiB",
                better: Better::Less,
                ours: ours.beyond_mib,
                peer: of_qemu(peer.beyond_mib),
                promises: vec![Promise::AtMost(5.0)],
                notes: memory.into_iter().flatten().collect(),
                parameters: Vec::new(),
            },
        ]
    }
}
