//! What trials need besides a kernel and a KVM host: the distribution's perf, and programs that workloads execute.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use unwindlab_abi::WorkloadKind;
use unwindlab_abi::plan::CompiledProgram;

use super::{LibraryRun, SkipReason};
use crate::host::provider::ProviderError;
use unwindlab_engine::plan::TrialPlan;

fn uses_tool(trial: &TrialPlan) -> bool {
    trial.guest.perf_tool.is_some()
}

/// The program that a workload executes, by its name.
fn program_of(trial: &TrialPlan) -> Option<&str> {
    let workload = &trial.guest.workload;
    match workload.kind {
        WorkloadKind::CProgram => Some(workload.kind.name()),
        WorkloadKind::Program => workload.reproducer.as_deref(),
        _ => None,
    }
}

/// What some trials need.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// The distribution's perf, or why it is not available, where a scenario uses it.
    pub(super) perf_tool: Option<Result<PathBuf, ProviderError>>,
    /// What workloads execute, by its name.
    programs: BTreeMap<String, Result<CompiledProgram, ProviderError>>,
}

impl LibraryRun<'_> {
    /// Gets what some of these trials need.
    pub(in crate::campaign) fn get_tools<'t>(
        &mut self,
        trials: impl Iterator<Item = &'t Result<TrialPlan, SkipReason>> + Clone,
    ) {
        let (provider, progress) = (self.context.provider, self.context.progress);
        let mut tools = Tools::default();
        if trials.clone().flatten().any(uses_tool) {
            tools.perf_tool = Some(provider.perf_tool(progress));
        }
        for trial in trials.flatten() {
            let Some(name) = program_of(trial).filter(|it| !tools.programs.contains_key(*it))
            else {
                continue;
            };
            let program = match trial.guest.workload.kind {
                WorkloadKind::CProgram => provider.c_program(progress),
                _ => provider.reproducer(name),
            };
            tools.programs.insert(name.to_owned(), program);
        }
        self.tools = Arc::new(tools);
    }

    /// What a trial needs and could not be had.
    pub(super) fn missing(&self, trial: &TrialPlan) -> Option<String> {
        match (&self.tools.perf_tool, self.program(trial)) {
            (Some(Err(reason)), _) if uses_tool(trial) => {
                Some(format!("no perf to record with: {reason}"))
            }
            (_, Some(Err(reason))) => Some(format!("no program to execute: {reason}")),
            _ => None,
        }
    }

    fn program(&self, trial: &TrialPlan) -> Option<&Result<CompiledProgram, ProviderError>> {
        self.tools.programs.get(program_of(trial)?)
    }

    /// The trial with the program that its workload executes.
    pub(super) fn with_program<'t>(&self, trial: &'t TrialPlan) -> Cow<'t, TrialPlan> {
        let mut trial = Cow::Borrowed(trial);
        if let Some(Ok(program)) = self.program(&trial) {
            trial.to_mut().guest.workload.program = Some(program.clone());
        }
        trial
    }
}
