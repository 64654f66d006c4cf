//! Set-ups of perf, one after the other from one boot.

mod base;

use std::io;
use std::time::Instant;

use self::base::base;
use super::Context;
use super::context::required_trial;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use crate::host::choice::KvmHost;
use crate::host::provider::{HostRequest, TestKernel};
use crate::judge::{Case, Judge, ScenarioResult};
use crate::report::json::Setting;
use crate::setup::judge::{Failure, Judged, invariants};
use crate::setup::refusals::{REFUSALS, Refusal};
use crate::setup::rules::ALONE;
use crate::setup::summary::{SetupsSummary, TriedSetup};
use crate::setup::{Factor, Setup, Strength, judge, refusals, session, setups};
use unwindlab_engine::plan::{ChoicePlan, Executor, TrialPlan};
use unwindlab_oracle::invariant::{Check, Evidence};
use unwindlab_oracle::trace::{Recording, Trace};
use unwindlab_scenario::Loaded;

/// The kernel has this variable if perf knows cgroups (`CONFIG_CGROUP_PERF`).
const CGROUP_PERF: &str = "perf_event_cgrp_subsys";

/// Which set-ups to try, and where.
#[derive(Debug, Clone)]
pub struct SetupsRequest {
    /// The seed of the covering array.
    pub seed: u64,
    /// What it covers.
    pub strength: Strength,
    /// Only the set-ups of these numbers; all where there are none.
    pub only: Vec<usize>,
    /// The kernel under test.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// What happens meanwhile.
#[expect(missing_debug_implementations, reason = "holds a trait object")]
pub enum SetupsEvent<'a> {
    /// So many are about to be tried.
    Started(usize),
    /// One is over.
    Tried {
        /// What came of it.
        tried: &'a TriedSetup,
        /// The trial's result.
        result: &'a ScenarioResult,
        /// The kernel.
        kernel: &'a dyn TestKernel,
    },
}

/// What came of set-ups.
#[derive(Debug)]
pub struct TestedSetups {
    /// What was tested, and where.
    pub setting: Setting,
    /// What is said of each.
    pub summary: SetupsSummary,
}

/// One set-up to try.
#[derive(Debug)]
enum Subject {
    /// One that the kernel must accept.
    Accepted(Setup),
    /// An event that it must refuse.
    Refused(&'static Refusal),
}

impl Subject {
    fn text(&self) -> String {
        match self {
            Self::Accepted(setup) => setup.text(),
            Self::Refused(refusal) => format!("to refuse: {}", refusal.name),
        }
    }

    fn trial(&self, base: &TrialPlan) -> TrialPlan {
        match self {
            Self::Accepted(setup) => session::trial(base, setup),
            Self::Refused(refusal) => refusals::trial(base, refusal),
        }
    }

    fn vcpus(&self) -> u8 {
        match self {
            Self::Accepted(setup) => session::vcpus(setup),
            Self::Refused(_) => 1,
        }
    }

    fn judge(&self, trace: &Trace) -> Judged {
        match self {
            Self::Accepted(setup) => judge::judge(setup, trace),
            Self::Refused(refusal) => refusals::judge(refusal, trace),
        }
    }
}

/// Levels that need a kernel with cgroups for perf.
const CGROUPS: &[(Factor, &str)] = &[
    (Factor::CgroupId, "yes"),
    (Factor::AskerOf, "cgroup"),
    (Factor::AskerOf, "empty-cgroup"),
    (Factor::ReceiverOf, "cgroup"),
    (Factor::ReceiverOf, "empty-cgroup"),
];

/// Levels that a kernel does not have.
fn left_out(kernel: &dyn TestKernel) -> &'static [(Factor, &'static str)] {
    match kernel.symbols().addresses(CGROUP_PERF).is_empty() {
        true => CGROUPS,
        false => &[],
    }
}

/// Tries set-ups. If the user interrupts it, nothing is told.
///
/// # Errors
/// [`CampaignError`].
pub fn run(
    request: &SetupsRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(SetupsEvent<'_>) -> io::Result<()>,
) -> Result<TestedSetups, CampaignError> {
    let start = Instant::now();
    let kernel_request = request.kernel.request()?;
    let kernel = context.fetch(&kernel_request)?;
    let kernel = kernel.as_ref();
    let matrix = Matrix::of(request, kernel, context)?;
    tell(SetupsEvent::Started(matrix.len()))?;
    let (mut executor, mut host) = (None, "none".to_owned());
    let mut all = Vec::new();
    for at in 0..matrix.len() {
        context.check_interrupt()?;
        context.progress.overall(at, matrix.len());
        let (tried, result) = matrix.try_one(at, None, &mut executor)?;
        if let Some(executor) = &executor {
            host = executor.host();
        }
        tell(SetupsEvent::Tried {
            tried: &tried,
            result: &result,
            kernel,
        })?;
        all.push(tried);
    }
    context.check_interrupt()?;
    all.sort_by_key(|tried: &TriedSetup| tried.number);
    Ok(TestedSetups {
        setting: Setting {
            kernel_spec: kernel_request.to_string(),
            kernel_release: kernel.release().to_owned(),
            kernel_hash: kernel.hash().to_owned(),
            kvm_host: host,
        },
        summary: SetupsSummary {
            tried: all,
            elapsed: start.elapsed(),
            left_out: left_out(kernel)
                .iter()
                .map(|(factor, level)| format!("{}={level}", factor.name()))
                .collect(),
        },
    })
}

/// The set-ups with their numbers, without some levels: those of the array from 0, those that are tried alone, then the
/// refusals.
fn chosen(
    request: &SetupsRequest,
    left_out: &[(Factor, &str)],
) -> Result<Vec<(usize, Subject)>, CampaignError> {
    let accepted = setups(request.strength, request.seed, left_out).into_iter();
    let alone = ALONE
        .iter()
        .map(|levels| Subject::Accepted(Setup::with(levels)));
    let refused = REFUSALS.iter().map(Subject::Refused);
    let mut all: Vec<_> = accepted
        .map(Subject::Accepted)
        .chain(alone)
        .chain(refused)
        .enumerate()
        .collect();
    let count = all.len();
    if let Some(beyond) = request.only.iter().find(|number| **number >= count) {
        return Err(CampaignError::Unknown {
            kind: "set-up",
            name: beyond.to_string(),
            known: format!("0 to {}", count.saturating_sub(1)),
        });
    }
    all.retain(|(number, _)| request.only.is_empty() || request.only.contains(number));
    // One boot for each number of vCPUs.
    all.sort_by_key(|(_, subject)| subject.vcpus());
    Ok(all)
}

/// Set-ups to try on a kernel.
pub(in crate::campaign) struct Matrix<'a> {
    subjects: Vec<(usize, Subject)>,
    kvm_host: KvmHost,
    context: Context<'a>,
    kernel: &'a dyn TestKernel,
    loaded: Loaded,
    plan: TrialPlan,
}

impl<'a> Matrix<'a> {
    /// Those of a request.
    pub(in crate::campaign) fn of(
        request: &SetupsRequest,
        kernel: &'a dyn TestKernel,
        context: Context<'a>,
    ) -> Result<Self, CampaignError> {
        let loaded = base(context)?;
        Ok(Self {
            subjects: chosen(request, left_out(kernel))?,
            kvm_host: request.kvm_host,
            context,
            kernel,
            plan: required_trial(&loaded, kernel)?,
            loaded,
        })
    }

    /// How many there are.
    pub(in crate::campaign) fn len(&self) -> usize {
        self.subjects.len()
    }

    /// Whether nothing else may run beside the set-up at this place of the list.
    pub(in crate::campaign) fn runs_alone(&self, at: usize) -> bool {
        self.subjects.get(at).is_some_and(|(_, it)| it.vcpus() > 1)
    }

    /// Tries the set-up at this place of the list. `choice` says which mutant the kernel is to be. A KVM host that is not there is started.
    pub(in crate::campaign) fn try_one(
        &self,
        at: usize,
        choice: Option<ChoicePlan>,
        executor: &mut Option<Box<dyn Executor>>,
    ) -> Result<(TriedSetup, ScenarioResult), CampaignError> {
        let Some((number, subject)) = self.subjects.get(at) else {
            return Err(CampaignError::NothingSelected);
        };
        let number = *number;
        let text = subject.text();
        self.context.progress.step(&format!("set-up {number}"));
        let mut trial = subject.trial(&self.plan);
        trial.choice = choice;
        let recording = self.record(&trial, executor)?;
        let all = self.context.analysis.invariants;
        let invariants = match subject {
            Subject::Accepted(setup) => invariants(all, setup),
            Subject::Refused(_) => all.to_vec(),
        };
        let judge = Judge {
            invariants: &invariants,
            ..self.context.judge(self.kernel.symbols(), false)
        };
        let _computing = self.context.interrupt.computing();
        let trace = Trace::decode(&recording);
        let judged = subject.judge(&trace);
        let mut result = judge.judge(Case {
            loaded: &self.loaded,
            plan: &trial,
            end: &recording.end,
            trace,
            duration: std::time::Duration::ZERO,
        });
        // A set-up in which nothing may come exercises no invariant; what may come is judged here.
        let nothing = |it: &crate::judge::result::InvariantCheck| {
            matches!(it.check, Check::NotExercised { .. })
        };
        if result.checks.iter().all(nothing) {
            result
                .reasons
                .retain(|reason| reason != "no invariant was exercised");
        }
        let matching = |failure: &Failure| {
            let evidence = Evidence::new(result.trace.as_ref()?);
            let findings = judge.findings;
            findings.matching(&failure.violation()?, &evidence, judge.symbols)
        };
        let tried = TriedSetup::new(number, text, judged, &result, &matching);
        Ok((tried, result))
    }

    /// A KVM host that failed is replaced for the next set-up.
    fn record(
        &self,
        trial: &TrialPlan,
        host: &mut Option<Box<dyn Executor>>,
    ) -> Result<Recording, CampaignError> {
        let mut executor = match host.take() {
            Some(executor) => executor,
            None => {
                let host = HostRequest {
                    kvm_host: self.kvm_host,
                    ..HostRequest::default()
                };
                self.context.start(host, self.kernel)?
            }
        };
        match executor.run(trial, self.context.progress) {
            Ok(recording) => {
                *host = Some(executor);
                Ok(recording)
            }
            Err(error) => Ok(error.into()),
        }
    }
}
