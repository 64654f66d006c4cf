//! Running the same scenarios on one kernel after the other: what mutants, variants, series and
//! bisections have in common.

use std::sync::mpsc;
use std::thread;

use super::Context;
use super::error::CampaignError;
use super::run::{LibraryRun, SkipReason, TrialOptions};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, ProviderError, TestKernel};
use crate::judge::ScenarioResult;
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::{Progress, TrialPlan};
use unwindlab_scenario::{Loaded, ResolveError, resolve};

/// What does not change from kernel to kernel.
pub(super) struct Suite<'a> {
    pub(super) library: Vec<Loaded>,
    pub(super) kvm_host: KvmHost,
    pub(super) context: Context<'a>,
}

/// A kernel and what is run on it.
#[derive(Debug, Clone)]
pub(super) struct KernelJob {
    pub(super) request: KernelRequest,
    /// Names of scenarios; all of the library where there is none.
    pub(super) only: Option<Vec<String>>,
}

/// The results of one kernel, in the order of the library, or why there is no such kernel.
pub(super) type KernelResults = Result<Vec<ScenarioResult>, ProviderError>;

pub(super) type Fetched = Result<Box<dyn TestKernel>, ProviderError>;

impl Suite<'_> {
    /// Runs these scenarios, or all, on this kernel.
    fn run(
        &self,
        kernel: &dyn TestKernel,
        only: Option<&[String]>,
    ) -> Result<Vec<ScenarioResult>, CampaignError> {
        let is_wanted = |loaded: &&Loaded| {
            only.is_none_or(|only| only.iter().any(|name| *name == *loaded.scenario.name))
        };
        let library: Vec<Loaded> = self.library.iter().filter(is_wanted).cloned().collect();
        self.run_library(kernel, &library)
    }

    /// Runs the whole library this many times, on one KVM host.
    pub(super) fn run_times(
        &self,
        kernel: &dyn TestKernel,
        times: u32,
    ) -> Result<Vec<ScenarioResult>, CampaignError> {
        let library = (0..times).flat_map(|_| self.library.iter().cloned());
        let library: Vec<Loaded> = library.collect();
        self.run_library(kernel, &library)
    }

    fn run_library(
        &self,
        kernel: &dyn TestKernel,
        library: &[Loaded],
    ) -> Result<Vec<ScenarioResult>, CampaignError> {
        // What the invariants say is asked for here, not what snapshots say.
        let options = TrialOptions {
            kvm_host: self.kvm_host,
            ..TrialOptions::default()
        };
        let trials = trials(library, kernel);
        let mut run = LibraryRun::new(&options, None, kernel, self.context);
        run.run_all(library, &trials, &mut |_, _| Ok(()))?;
        self.context.check_interrupt()?;
        Ok(run.results)
    }

    /// Gets one kernel after the other and runs its scenarios; `take` gets the results in the order
    /// of the jobs. While one kernel runs, the next is built.
    pub(super) fn run_each(
        &self,
        jobs: &[KernelJob],
        mut take: impl FnMut(usize, KernelResults) -> Result<(), CampaignError>,
    ) -> Result<(), CampaignError> {
        let requests: Vec<&KernelRequest> = jobs.iter().map(|it| &it.request).collect();
        each_built(&requests, self.context, &mut |at, fetched| {
            let only = jobs.get(at).and_then(|job| job.only.as_deref());
            let results = match fetched {
                Ok(kernel) => Ok(self.run(kernel.as_ref(), only)?),
                Err(error) => Err(error),
            };
            take(at, results)
        })
    }
}

/// Gets one kernel after the other; `take` gets them in order. While it works with one, the next is built.
pub(super) fn each_built(
    requests: &[&KernelRequest],
    context: Context<'_>,
    take: &mut dyn FnMut(usize, Fetched) -> Result<(), CampaignError>,
) -> Result<(), CampaignError> {
    thread::scope(|scope| {
        // No further ahead than one: each may be a bad one after which nothing is wanted.
        let (send, receive) = mpsc::sync_channel::<Fetched>(0);
        let (provider, interrupt) = (context.provider, context.interrupt);
        scope.spawn(move || build_each(provider, interrupt, requests, &send));
        for (at, request) in requests.iter().enumerate() {
            context.progress.overall(at, requests.len());
            context.progress.step(&format!("building {request}"));
            let Ok(fetched) = receive.recv() else {
                // It stops before the end for an interrupt only.
                return Err(CampaignError::Interrupted);
            };
            take(at, fetched)?;
        }
        Ok(())
    })
}

/// The trials of scenarios on a kernel, or why they do not fit it.
pub(super) fn trials(
    library: &[Loaded],
    kernel: &dyn TestKernel,
) -> Vec<Result<TrialPlan, SkipReason>> {
    let trial = |loaded: &Loaded| {
        let (symbols, hash) = (kernel.symbols(), kernel.hash());
        resolve(&loaded.file, &loaded.scenario, symbols, hash).map_err(reason)
    };
    library.iter().map(trial).collect()
}

/// Sends a kernel for each job until the receiver is gone or the user interrupts.
fn build_each(
    provider: &dyn Provider,
    interrupt: &Interrupt,
    requests: &[&KernelRequest],
    to: &mpsc::SyncSender<Fetched>,
) {
    for request in requests {
        if interrupt.is_set() {
            return;
        }
        let kernel = provider.fetch(request, &Quiet, interrupt);
        if to.send(kernel).is_err() {
            return;
        }
    }
}

/// The items of `all` that `only` names, or all if it names none. `kind` is their name in errors.
pub(super) fn choose<T>(
    mut all: Vec<T>,
    name: impl Fn(&T) -> &str,
    only: &[String],
    kind: &'static str,
) -> Result<Vec<T>, CampaignError> {
    for wanted in only {
        if !all.iter().any(|it| name(it) == wanted) {
            let names: Vec<&str> = all.iter().map(&name).collect();
            return Err(CampaignError::Unknown {
                kind,
                name: wanted.clone(),
                known: names.join(", "),
            });
        }
    }
    all.retain(|it| only.is_empty() || only.iter().any(|wanted| name(it) == wanted));
    Ok(all)
}

/// Why a scenario does not fit a kernel, in one line.
fn reason(error: ResolveError) -> SkipReason {
    SkipReason(match error {
        ResolveError::Unsupported(lack) => lack.to_string(),
        ResolveError::Scenario(errors) => {
            let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            errors.join("; ")
        }
    })
}

/// Progress of a build beside a running scenario, which has the spinner.
struct Quiet;

impl Progress for Quiet {
    fn step(&self, what: &str) {
        tracing::info!("{what}");
    }

    fn bytes(&self, _: u64, _: u64) {}
}
