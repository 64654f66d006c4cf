//! The surveys and trials, one after the other on one KVM host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use unwindlab_abi::{SurveyPlan, SurveyedPlace};

use super::{PlacesRequest, scenario};
use crate::campaign::Context;
use crate::campaign::context::required_trial;
use crate::campaign::error::CampaignError;
use crate::campaign::replay_file::{
    Replay, ReplayKernel, ReplayRun, ReplayTrial, ReplayVerdict, VERSION, save,
};
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::judge::requests::{Company, Place};
use crate::judge::{Case, ScenarioResult};
use unwindlab_engine::plan::{Executor, InfraError, TrialPlan};
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::{Recording, Trace};
use unwindlab_scenario::Loaded;

/// The folder of replay files, with other things that outlive a run.
const FOLDER: &str = "unwindlab-out";

/// Makes the trials.
pub(super) struct Trials<'a> {
    request: &'a PlacesRequest,
    loaded: &'a Loaded,
    kernel: &'a dyn TestKernel,
    context: Context<'a>,
    host: Box<dyn Executor>,
}

impl<'a> Trials<'a> {
    pub(super) fn new(
        request: &'a PlacesRequest,
        loaded: &'a Loaded,
        kernel: &'a dyn TestKernel,
        context: Context<'a>,
    ) -> Result<Self, CampaignError> {
        Ok(Self {
            host: start(request, kernel, context)?,
            request,
            loaded,
            kernel,
            context,
        })
    }

    /// What the KVM host says of itself.
    pub(super) fn host_name(&self) -> String {
        self.host.host()
    }

    /// What the workload's tasks pass in this company.
    pub(super) fn survey(
        &mut self,
        survey: SurveyPlan,
        company: Company,
    ) -> Result<Vec<SurveyedPlace>, CampaignError> {
        let trial = self.scenario(None, company, 0)?;
        let mut plan = required_trial(&trial, self.kernel)?;
        plan.guest.survey = Some(survey);
        self.context.progress.step("looking for places on the path");
        let recording = self.record(&plan)?;
        let recording = recording.unwrap_or_else(Recording::from);
        match recording.end {
            TrialEnd::Completed => Ok(recording.survey),
            end => {
                let why = format!("the places of the path are not known: {}", because(&end));
                Err(ProviderError::Unavailable(why).into())
            }
        }
    }

    /// Makes the trial of a place: its scenario, and the result.
    pub(super) fn make(
        &mut self,
        number: usize,
        place: &Place,
    ) -> Result<(Loaded, ScenarioResult), CampaignError> {
        let trial = self.scenario(Some(place), place.company, number)?;
        let plan = required_trial(&trial, self.kernel)?;
        let begin = Instant::now();
        let recording = match self.record(&plan)? {
            Ok(recording) => recording,
            Err(error) => {
                self.host = start(self.request, self.kernel, self.context)?;
                error.into()
            }
        };
        let judge = (self.context).judge(self.kernel.symbols(), false);
        let _computing = self.context.interrupt.computing();
        let result = judge.judge(Case {
            loaded: &trial,
            plan: &plan,
            end: &recording.end,
            trace: Trace::decode(&recording),
            duration: begin.elapsed(),
        });
        Ok((trial, result))
    }

    fn scenario(
        &self,
        place: Option<&Place>,
        company: Company,
        number: usize,
    ) -> Result<Loaded, CampaignError> {
        let invariants = self.context.analysis.invariant_ids();
        Ok(scenario::trial(
            self.loaded,
            place,
            company,
            number,
            &invariants,
        )?)
    }

    /// The inner error is the host's; a trial that the user interrupted says nothing.
    fn record(&mut self, plan: &TrialPlan) -> Result<Result<Recording, InfraError>, CampaignError> {
        let recorded = self.host.run(plan, self.context.progress);
        self.context.check_interrupt()?;
        Ok(recorded)
    }

    /// Writes a replay file of a trial that failed; where it is.
    pub(super) fn keep_replay(
        &self,
        trial: &Loaded,
        result: &ScenarioResult,
    ) -> Result<Option<PathBuf>, CampaignError> {
        let Some(verdict) = ReplayVerdict::of_run(result) else {
            return Ok(None);
        };
        let name = trial.scenario.name.to_string();
        let path = Path::new(FOLDER).join(format!("{name}.replay.json"));
        let replay = Replay {
            version: VERSION,
            name,
            scenario: trial.text.clone(),
            snapshot: None,
            kernel: ReplayKernel::of(self.kernel, &self.request.kernel)?,
            trial: ReplayTrial::Run(ReplayRun {
                seed: None,
                trials: None,
                token: None,
                witness: None,
            }),
            verdict,
        };
        fs::create_dir_all(FOLDER)?;
        save(&path, &replay)?;
        Ok(Some(path))
    }
}

fn start(
    request: &PlacesRequest,
    kernel: &dyn TestKernel,
    context: Context<'_>,
) -> Result<Box<dyn Executor>, ProviderError> {
    let host = HostRequest {
        kvm_host: request.kvm_host,
        ..HostRequest::default()
    };
    context.start(host, kernel)
}

/// Why a survey ended, in words.
fn because(end: &TrialEnd) -> String {
    match end {
        TrialEnd::Unsupported { reason }
        | TrialEnd::HostLacks { reason }
        | TrialEnd::Misbehaved { what: reason }
        | TrialEnd::BootError { reason, .. }
        | TrialEnd::Infra { reason } => reason.clone(),
        TrialEnd::Panic { line } | TrialEnd::Silent { line } => {
            format!("the guest panicked: {line}")
        }
        TrialEnd::Hang { .. } => "the guest hangs".to_owned(),
        TrialEnd::Starved { .. } => "the KVM host gets too little of this machine".to_owned(),
        TrialEnd::Timeout => "the guest took too long; see the scenario's `timeout`".to_owned(),
        TrialEnd::Completed | TrialEnd::Unknown => "the trial did not say how it ended".to_owned(),
    }
}
