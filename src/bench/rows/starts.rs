//! Machine start to agent ready, and the memory of the VMM at that moment: one start gives both.

use super::{Bench, Line, PeerSeries, Promise, QEMU, Row, number, other_figures};
use crate::bench::series::{Series, Spread};
use crate::plan::measurement::{Figures, Order, Vmm};

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

    fn take(&mut self, start: impl FnOnce() -> Result<Figures, String>) {
        let started = start().and_then(|figures| match figures {
            Figures::Started {
                micros,
                beyond_kib,
                guest_kib,
                anonymous_kib,
            } => Ok((micros, [beyond_kib, guest_kib, anonymous_kib].map(mib))),
            other => Err(other_figures(&other)),
        });
        let (seconds, beyond) = match started {
            Ok((micros, [beyond, guest, anonymous])) => {
                self.guest_mib.push(guest);
                self.anonymous_mib.push(anonymous);
                (Ok(number(micros) / 1e6), Ok(beyond))
            }
            Err(why) => (Err(why.clone()), Err(why)),
        };
        self.seconds.take(|| seconds);
        self.beyond_mib.take(|| beyond);
    }

    /// What the memory is, in words.
    fn memory(&self, who: &str) -> Option<String> {
        let guest = Spread::of(&self.guest_mib)?.median;
        let anonymous = Spread::of(&self.anonymous_mib)?.median;
        Some(format!(
            "{who}: {anonymous:.1} MiB of it are of no file; of the guest's RAM {guest:.0} MiB are resident"
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
                    starts.take(|| self.order(&Order::Start { vmm, machine }));
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
                ours: ours.seconds,
                peer: of_qemu(peer.seconds),
                promises: vec![Promise::RatioAtMost(0.5)],
                notes: Vec::new(),
            },
            Line {
                row: Row::Memory,
                what: "resident memory of the VMM's process beyond the guest's RAM",
                unit: "MiB",
                ours: ours.beyond_mib,
                peer: of_qemu(peer.beyond_mib),
                promises: vec![Promise::AtMost(5.0)],
                notes: memory.into_iter().flatten().collect(),
            },
        ]
    }
}
