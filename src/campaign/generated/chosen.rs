//! Mutants that are chosen in one kernel, several side by side: each worker has a KVM host of its own.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::coverage::Coverage;
use super::order::Order;
use super::tester::{Bench, Tester};
use crate::campaign::error::CampaignError;
use crate::host::provider::TestKernel;
use crate::report::mutation::MutationFate;
use unwindlab_engine::plan::ChoicePlan;
use unwindlab_guest_kernel::build::generate::GeneratedMutant;

/// Mutants that are chosen in one kernel.
pub(super) struct ChosenMutants<'t> {
    pub(super) tester: &'t Tester<'t>,
    pub(super) kernel: &'t dyn TestKernel,
    pub(super) coverage: &'t Coverage,
    /// Where the kernel has its variables.
    pub(super) choice: ChoicePlan,
    /// Findings that the kernel without a mutant has.
    pub(super) known: &'t BTreeSet<String>,
}

/// What became of a mutant, and how long its tests took.
pub(super) type Fate = (MutationFate, Duration);

impl ChosenMutants<'_> {
    /// Tests mutants; `take` gets what became of each as soon as it is known, and what was learned of it.
    pub(super) fn test<'m>(
        &self,
        mutants: &[&'m GeneratedMutant],
        order: &Mutex<Order>,
        take: &mut dyn FnMut(&'m GeneratedMutant, Fate) -> Result<(), CampaignError>,
    ) -> Result<(), CampaignError> {
        let left = Mutex::new(0..mutants.len());
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            let (send, receive) = channel();
            for _ in 0..self.tester.options.jobs.min(mutants.len()) {
                let (send, left, stopped) = (send.clone(), &left, &stopped);
                scope.spawn(move || {
                    let mut bench = Bench::new(self.tester, self.kernel);
                    while !stopped.load(Ordering::Relaxed)
                        && self.next(&mut bench, mutants, left, order, &send)
                    {}
                });
            }
            drop(send);
            for (at, fate) in receive {
                let taken = fate.and_then(|fate| match mutants.get(at) {
                    Some(mutant) => take(mutant, fate),
                    None => Ok(()),
                });
                if taken.is_err() {
                    stopped.store(true, Ordering::Relaxed);
                    return taken;
                }
            }
            Ok(())
        })
    }

    /// Tests the next mutant; whether there was one and somebody waits for what became of it.
    fn next(
        &self,
        bench: &mut Bench<'_>,
        mutants: &[&GeneratedMutant],
        left: &Mutex<std::ops::Range<usize>>,
        order: &Mutex<Order>,
        send: &Sender<(usize, Result<Fate, CampaignError>)>,
    ) -> bool {
        let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((at, mutant)) = next.and_then(|at| Some((at, *mutants.get(at)?))) else {
            return false;
        };
        self.tester.context.progress.overall(at, mutants.len());
        let tests = self.coverage.tests(mutant, self.tester, order);
        let begin = Instant::now();
        let choice = ChoicePlan {
            number: mutant.choice.unwrap_or_default(),
            ..self.choice
        };
        let in_boot = { tests.boots }.then(|| "the boot".to_owned());
        let fate = match self.coverage.nearest(mutant).or(in_boot) {
            None => Ok(MutationFate::NotCovered),
            nearest => {
                let tested = bench.test(&tests, Some(choice));
                tested.map(|it| it.fate(self.known, nearest))
            }
        };
        let is_over = fate.is_err();
        let fate = fate.map(|fate| (fate, begin.elapsed()));
        send.send((at, fate)).is_ok() && !is_over
    }
}
