//! The VMM's own checks of a KVM: tiny guests without a kernel, and what must be seen of them.
//!
//! They have one copy and two callers: the tests in `vmm/tests`, a test for each check, and `unwindlab doctor --self-test`, which runs
//! all of them on a KVM of somebody else's. So a check does not panic: what it sees and did not expect is a [`Failure`].

mod accesses;
mod bare_metal;
mod checkpoint;
mod counters;
mod debug;
mod dirty_log;
mod events;
mod failure;
mod here;
mod lab;
mod nmis;
mod returns;
mod shadows;
mod timer;
mod tlb;
mod traps;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub use self::failure::{Failure, Outcome};
pub use self::lab::{Effort, Lab};

/// What a check takes to say something about a KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Only that a machine can be built.
    Machines,
    /// That kernel code is executed as by a CPU, which [`probe`](crate::probe) tells.
    KernelCode,
}

/// A check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name, which is that of its test too.
    pub name: &'static str,
    /// What it takes.
    pub needs: Needs,
    body: fn(&Lab) -> Outcome,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All was as it must be.
    Ok,
    /// Something was not.
    Failed(Failure),
    /// It cannot say anything here, for this reason.
    NotAvailable(String),
}

/// Makes the list of a module's checks, by what they need.
macro_rules! checks {
    ($($needs:ident: $($name:ident)+;)+) => {
        pub(super) const CHECKS: &[super::Check] = &[$($(
            super::Check {
                name: stringify!($name),
                needs: super::Needs::$needs,
                body: $name,
            },
        )+)+];
    };
}
use checks;

/// All checks, in the order in which they run: what the others rest on comes first.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let groups = [
        lab::CHECKS,
        bare_metal::CHECKS,
        accesses::CHECKS,
        here::CHECKS,
        checkpoint::CHECKS,
        dirty_log::CHECKS,
        tlb::CHECKS,
        timer::CHECKS,
        counters::CHECKS,
        debug::CHECKS,
        shadows::CHECKS,
        nmis::CHECKS,
        events::CHECKS,
        traps::CHECKS,
        returns::CHECKS,
    ];
    groups.into_iter().flatten()
}

impl Check {
    /// Runs it. A check that is not over after `limit` has failed; its machine and threads are left behind then.
    #[must_use]
    pub fn run(&self, lab: &Lab, limit: Duration) -> Verdict {
        if self.needs == Needs::KernelCode && lab.unfit().is_some() {
            let why = "it takes a KVM that runs kernel code, as `this_kvm_runs_kernel_code` checks";
            return Verdict::NotAvailable(why.to_owned());
        }
        match self.until(lab.clone(), limit) {
            Ok(()) => Verdict::Ok,
            Err(Failure::NotAvailable(why)) => Verdict::NotAvailable(why),
            Err(failure) => Verdict::Failed(failure),
        }
    }

    fn until(&self, lab: Lab, limit: Duration) -> Outcome {
        let body = self.body;
        let (said, outcome) = mpsc::channel();
        let run = move || {
            // A panic of the VMM is a failure of the check, not of those behind it.
            let caught = catch_unwind(AssertUnwindSafe(|| body(&lab)));
            // Nobody waits for a check that is overdue.
            let _ = said.send(caught.unwrap_or_else(|panic| Err(Failure::panicked(&*panic))));
        };
        // The test harness knows a test by its thread's name, and so does who reads a panic.
        let builder = thread::Builder::new().name(self.name.to_owned());
        builder.spawn(run)?;
        match outcome.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Overdue(limit)),
        }
    }
}

#[cfg(test)]
mod tests;
