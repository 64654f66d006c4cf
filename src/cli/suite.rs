//! The same scenarios on one kernel after the other: what mutants, variants, a series and a bisection
//! have in common.

use std::sync::mpsc;
use std::thread;

use super::analysis::Analysis;
use super::args::KernelOptions;
use super::error::CommandError;
use super::progress::Spinner;
use super::session::{Session, Setup};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, ProviderError, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::ScenarioResult;
use crate::plan::{Progress, TrialPlan};
use crate::scenario::{Loaded, ResolveError, resolve};

/// What does not change from kernel to kernel.
pub(super) struct Suite<'a> {
    pub(super) library: Vec<Loaded>,
    pub(super) kvm_host: KvmHost,
    pub(super) provider: &'a dyn Provider,
    pub(super) analysis: &'a Analysis,
    pub(super) spinner: &'a Spinner,
    pub(super) interrupt: &'a Interrupt,
}

/// A kernel and what is run on it.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) request: KernelRequest,
    /// Names of scenarios; all of the library where there is none.
    pub(super) only: Option<Vec<String>>,
}

/// What came of one kernel.
#[derive(Debug)]
pub(super) enum Judged {
    /// The results, in the order of the library.
    Ran { results: Vec<ScenarioResult> },
    /// There is no such kernel to run.
    NotBuilt(ProviderError),
}

type Fetched = Result<Box<dyn TestKernel>, ProviderError>;

impl Suite<'_> {
    /// Runs these scenarios, or all, on this kernel.
    pub(super) fn run(
        &self,
        kernel: &dyn TestKernel,
        only: Option<&[String]>,
    ) -> Result<Vec<ScenarioResult>, CommandError> {
        let is_wanted = |loaded: &&Loaded| {
            only.is_none_or(|only| only.iter().any(|name| *name == *loaded.scenario.name))
        };
        self.run_library(
            kernel,
            self.library.iter().filter(is_wanted).cloned().collect(),
        )
    }

    /// Runs the whole library so many times, on one KVM host.
    pub(super) fn run_times(
        &self,
        kernel: &dyn TestKernel,
        times: u32,
    ) -> Result<Vec<ScenarioResult>, CommandError> {
        let library = (0..times).flat_map(|_| self.library.iter().cloned());
        self.run_library(kernel, library.collect())
    }

    fn run_library(
        &self,
        kernel: &dyn TestKernel,
        library: Vec<Loaded>,
    ) -> Result<Vec<ScenarioResult>, CommandError> {
        let setup = Setup {
            library,
            kvm_host: self.kvm_host,
            seed: None,
            trials: None,
            token: None,
            // What the invariants say is asked for here, and nothing else.
            compare_snapshots: false,
            artifacts: None,
            all_events: false,
            kernel: KernelOptions::default(),
            show: false,
        };
        let trials: Vec<Result<TrialPlan, String>> = setup
            .library
            .iter()
            .map(|loaded| {
                resolve(
                    &loaded.file,
                    &loaded.scenario,
                    kernel.symbols(),
                    kernel.hash(),
                )
                .map_err(reason)
            })
            .collect();
        let mut session = Session::new(
            &setup,
            self.provider,
            kernel,
            self.analysis,
            self.spinner,
            self.interrupt,
        );
        session.run_all(&trials)?;
        let (results, _) = session.finish();
        if self.interrupt.is_set() {
            return Err(CommandError::Interrupted);
        }
        Ok(results)
    }

    /// Gets one kernel after the other and runs the scenarios on each; `take` has the results in
    /// the order of the jobs. While one kernel runs, the next is built.
    pub(super) fn run_each(
        &self,
        jobs: &[Job],
        mut take: impl FnMut(usize, Judged) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        thread::scope(|scope| {
            // No further ahead than one: each may be a bad one after which nothing is wanted.
            let (send, receive) = mpsc::sync_channel::<Fetched>(0);
            let (provider, interrupt) = (self.provider, self.interrupt);
            scope.spawn(move || build_each(provider, interrupt, jobs, &send));
            for (at, job) in jobs.iter().enumerate() {
                self.spinner.step(&format!("building {}", job.request));
                let Ok(fetched) = receive.recv() else {
                    // It stops before the end for an interrupt only.
                    return Err(CommandError::Interrupted);
                };
                let judged = match fetched {
                    Ok(kernel) => Judged::Ran {
                        results: self.run(kernel.as_ref(), job.only.as_deref())?,
                    },
                    Err(error) => Judged::NotBuilt(error),
                };
                take(at, judged)?;
            }
            Ok(())
        })
    }
}

/// Sends a kernel for each job until nobody wants more.
fn build_each(
    provider: &dyn Provider,
    interrupt: &Interrupt,
    jobs: &[Job],
    to: &mpsc::SyncSender<Fetched>,
) {
    for job in jobs {
        if interrupt.is_set() {
            return;
        }
        let kernel = provider.fetch(&job.request, &Quiet, interrupt);
        if to.send(kernel).is_err() {
            return;
        }
    }
}

/// Those of `all` that `--only` names, all where it names none; `kind` is what they are called.
pub(super) fn choose<T>(
    mut all: Vec<T>,
    name: impl Fn(&T) -> &str,
    only: &[String],
    kind: &str,
) -> Result<Vec<T>, CommandError> {
    for wanted in only {
        if !all.iter().any(|it| name(it) == wanted) {
            let names: Vec<&str> = all.iter().map(&name).collect();
            return Err(CommandError::Usage(format!(
                "no {kind} {wanted:?}; there are: {}",
                names.join(", ")
            )));
        }
    }
    all.retain(|it| only.is_empty() || only.iter().any(|wanted| name(it) == wanted));
    Ok(all)
}

/// Why a scenario is not for a kernel, in one line.
fn reason(error: ResolveError) -> String {
    match error {
        ResolveError::Unsupported(lack) => lack.to_string(),
        ResolveError::Scenario(errors) => {
            let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            errors.join("; ")
        }
    }
}

/// Of a build beside a running scenario: the spinner belongs to that.
struct Quiet;

impl Progress for Quiet {
    fn step(&self, what: &str) {
        tracing::info!("{what}");
    }

    fn bytes(&self, _: u64, _: u64) {}
}
