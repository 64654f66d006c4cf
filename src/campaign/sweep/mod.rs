//! One trial for every instruction boundary of a path.

mod collector;
mod event;
mod plan;
mod replays;
mod request;
mod set;

use std::io;
use std::path::PathBuf;
use unwindlab_guest_kernel::input;

use self::collector::{Collector, ResumeFile};
pub use self::event::{SweepEvent, SweepSummary, SweptFailure, SweptPath};
pub(super) use self::plan::plan;
pub use self::request::{
    PairChoice, PathOrigin, PathPlace, PathRequest, PointChoice, PointNumber, PointNumberError,
    ReplayedPoint, SweepOptions, SweepRequest,
};
pub use self::set::{SetEvent, SetRequest, SetResult, SetSweep, sweep_set, sweeps};
use super::Context;
use super::error::{CampaignError, SweepRequestError};
use super::program;
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::judge::sweep_record::{SweepChoice, SweepIdentity, SweepRecord, SweepRecordError};
use crate::report::output_file::OutputFile;
use crate::report::sweep::{Cut, Summary};
use unwindlab_engine::plan::sweep::{Made, Points, SweepPlan};
use unwindlab_engine::plan::{Executor, InfraError};
use unwindlab_scenario::Loaded;

/// Sweeps a path.
///
/// # Errors
/// [`CampaignError`]; where the user stopped it, or the KVM host failed in the middle, the end is told all
/// the same.
pub fn sweep(
    request: &SweepRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
) -> Result<SweepSummary, CampaignError> {
    sweep_on(&mut None, request, context, tell)
}

/// Sweeps a path on this KVM host, or on a new one that is left here; none is left where it failed
/// or the sweep was broken off.
///
/// # Errors
/// As [`sweep`].
pub(super) fn sweep_on(
    kvm_host: &mut Option<Box<dyn Executor>>,
    request: &SweepRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
) -> Result<SweepSummary, CampaignError> {
    let kernel_request = request.kernel.request()?;
    // What is wrong with the request is told before a kernel is built for it.
    let files = Files::read(request, context)?;
    let kernel = context.fetch(&kernel_request)?;
    sweep_files(kvm_host, request, files, kernel.as_ref(), context, tell)
}

/// Sweeps a path of this kernel, which is the one that the request names.
///
/// # Errors
/// As [`sweep`].
pub(super) fn sweep_kernel(
    kvm_host: &mut Option<Box<dyn Executor>>,
    request: &SweepRequest,
    kernel: &dyn TestKernel,
    context: Context<'_>,
    tell: &mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
) -> Result<SweepSummary, CampaignError> {
    let files = Files::read(request, context)?;
    sweep_files(kvm_host, request, files, kernel, context, tell)
}

/// What a request names that is read.
struct Files {
    scenario: Loaded,
    /// The text of an earlier sweep's file, if there is one.
    earlier: Option<String>,
}

impl Files {
    fn read(request: &SweepRequest, context: Context<'_>) -> Result<Self, CampaignError> {
        Ok(Self {
            scenario: one_scenario(request, context)?,
            earlier: earlier(request)?,
        })
    }
}

fn sweep_files(
    kvm_host: &mut Option<Box<dyn Executor>>,
    request: &SweepRequest,
    files: Files,
    kernel: &dyn TestKernel,
    context: Context<'_>,
    tell: &mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
) -> Result<SweepSummary, CampaignError> {
    let kernel_request = request.kernel.request()?;
    let mut loaded = files.scenario;
    loaded.scenario.witness = request.options.witness.or(loaded.scenario.witness);
    let mut plan = plan::plan(request, &loaded, kernel)?;
    let resume = resume(request, files.earlier, &loaded, kernel, &mut plan)?;
    let of = (&plan, request.options.budget);
    let mut collector = Collector::new(context, kernel, of, resume, &mut *tell);
    collector.tells_failures = matches!(request.points, PointChoice::Numbered(_))
        || matches!(plan.points, Points::At { .. });
    let mut host = match kvm_host.take() {
        Some(host) => host,
        None => context.start(
            HostRequest {
                kvm_host: request.kvm_host,
                guests: true,
                ..HostRequest::default()
            },
            kernel,
        )?,
    };
    let host_name = host.host();
    let swept = make_trials(host.as_mut(), &plan, context, &mut collector)?;
    if swept.is_ok() {
        *kvm_host = Some(host);
    }
    let Collector {
        verdicts,
        chosen,
        failed,
        effort,
        begin,
        stopped,
        ..
    } = collector;
    let cut = match (context.interrupt.is_set(), stopped) {
        (true, _) => Some(Cut::Interrupt),
        (_, true) => Some(Cut::Budget),
        _ if swept.is_err() || failed.is_some() => Some(Cut::Failure),
        _ => None,
    };
    let broke_off = match (swept, failed) {
        _ if matches!(cut, Some(Cut::Budget | Cut::Interrupt)) => None,
        (Err(error), _) => Some(ProviderError::from(error)),
        (Ok(()), reason) => reason.map(ProviderError::Unavailable),
    };
    let Some(verdicts) = verdicts else {
        context.check_interrupt()?;
        let none = || ProviderError::Unavailable("no path".to_owned());
        return Err(broke_off.unwrap_or_else(none).into());
    };
    let path = SweptPath {
        scenario: &loaded.scenario.name,
        kernel,
        kernel_spec: kernel_request.to_string(),
        kvm_host: host_name,
        summary: Summary {
            verdicts: &verdicts,
            chosen,
            effort: effort.as_ref(),
            elapsed: begin.elapsed(),
            cut,
        },
    };
    let summary = path.so_far();
    tell(SweepEvent::Ended(&path))?;
    if request.options.keeps_replays {
        replays::write(request, &loaded, kernel, &verdicts, tell)?;
    }
    context.check_interrupt()?;
    match broke_off {
        Some(ProviderError::Unavailable(reason)) => {
            let reason = format!("the sweep broke off: {reason}");
            Err(ProviderError::Unavailable(reason).into())
        }
        Some(error) => Err(error.into()),
        None => Ok(summary),
    }
}

/// Has all trials made and taken; whether the KVM host can make more.
fn make_trials(
    host: &mut dyn Executor,
    plan: &SweepPlan,
    context: Context<'_>,
    collector: &mut Collector<'_, '_>,
) -> Result<Result<(), InfraError>, CampaignError> {
    let what = format!("{}: recording the path", plan.trial.scenario);
    context.progress.step(&what);
    let swept = host.sweep(plan, &mut |message| {
        collector.take(message) && !context.interrupt.is_set()
    });
    collector.keep()?;
    collector.check_heard()?;
    Ok(swept)
}

/// Opens the file for a later sweep; what it has already is not tried again.
fn resume(
    request: &SweepRequest,
    earlier: Option<String>,
    loaded: &Loaded,
    kernel: &dyn TestKernel,
    plan: &mut SweepPlan,
) -> Result<Option<ResumeFile>, CampaignError> {
    let Some(path) = request.options.resume.clone() else {
        return Ok(None);
    };
    let of = SweepIdentity {
        scenario: loaded.text.clone(),
        kernel: kernel.hash().to_owned(),
        asks: plan.made != Made::Nothing,
        from: request.path.start.from().map(ToString::to_string),
        pairs: request.pairs.is_some(),
    };
    let record = earlier.map(|text| {
        SweepRecord::parse(&text, &of, plan.shard).map_err(|why| {
            let path = path.clone();
            SweepRequestError::Resume { path, why }
        })
    });
    let record = record.transpose()?;
    let choice = SweepChoice {
        program: program::hash()?,
        points: plan.points.clone(),
        second: { plan.pairs.as_ref() }.map(|pairs| (pairs.points.clone(), pairs.all)),
        witness: request.options.witness,
    };
    let mixed = record.as_ref().and_then(|it| it.choice.differs(&choice));
    if let (Some(what), Some(_)) = (mixed, plan.shard) {
        let why = SweepRecordError::OtherSweep(what);
        return Err(SweepRequestError::Resume { path, why }.into());
    }
    if let Some(record) = &record {
        plan.done = record.done();
    }
    // What cannot be written is told now, not at the end.
    drop(OutputFile::create(&path)?);
    Ok(Some(ResumeFile {
        path,
        of,
        choice,
        record,
    }))
}

/// The text of an earlier sweep's file, if there is one.
fn earlier(request: &SweepRequest) -> Result<Option<String>, SweepRequestError> {
    let Some(path) = &request.options.resume else {
        return Ok(None);
    };
    match input::text(path, input::RECORDED) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SweepRequestError::ResumeRead {
            path: path.clone(),
            source,
        }),
    }
}

fn one_scenario(request: &SweepRequest, context: Context<'_>) -> Result<Loaded, CampaignError> {
    let mut scenarios = context.open(&[PathBuf::from(&request.path.scenario)])?;
    match (scenarios.pop(), scenarios.is_empty()) {
        (Some(loaded), true) => Ok(loaded),
        _ => Err(SweepRequestError::NotOneScenario.into()),
    }
}

#[cfg(test)]
mod tests;
