//! What is promised, measured.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::input;

use super::Context;
use super::context::required_trial;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::program;
use super::sweep::{self, PathRequest, SweepRequest};
use crate::bench::against::{self, Earlier, FileError, LineChange, Today, compare};
use crate::bench::machine::Machine;
use crate::bench::rows::{self, Bench, Commands, Line, Row};
use crate::host::choice::KvmHost;
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::judge::outcome::OutcomeClass;
use crate::report::json::Setting;
use unwindlab_engine::plan::MachineSpec;
use unwindlab_engine::plan::sweep::SweepPlan;
use unwindlab_scenario::Loaded;
use unwindlab_scenario::library::LibraryError;

/// The scenario that is swept, and whose trial is made by reboot.
const SWEPT: &str = "nmi-in-syscall";
/// The scenario whose records are decoded.
const RECORDED: &str = "many-threads-2-vcpus";

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchRequest {
    /// The rows.
    pub rows: Vec<Row>,
    /// How often each number is measured.
    pub rounds: u32,
    /// The folder of the QEMU to compare with; Debian's where there is none.
    pub peer: Option<PathBuf>,
    /// The kernel that is booted.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// Options with which rows start this program's `run`, on the same kernel and KVM host.
    pub run_options: Vec<OsString>,
    /// The source tree of this program that rows build.
    pub checkout: Option<PathBuf>,
    /// The figures of an earlier time to compare with.
    pub against: Option<PathBuf>,
}

/// A file of figures is of no use.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct AgainstError {
    pub path: PathBuf,
    pub why: AgainstProblem,
}

/// What is wrong with a file of figures.
#[derive(Debug, thiserror::Error)]
pub enum AgainstProblem {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It has something else in it.
    #[error(transparent)]
    Form(#[from] FileError),
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct BenchSummary {
    /// The figures, in the order of the rows.
    pub lines: Vec<Line>,
    /// What was measured, and where.
    pub setting: Setting,
    /// On which machine.
    pub machine: Machine,
    /// The figures of before, and what became of each, where the request names a file.
    pub against: Option<(Vec<Earlier>, Vec<LineChange>)>,
}

impl BenchSummary {
    /// Bad where a figure is worse than before; good where there is every figure and each could be compared, if it was to
    /// be.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        let changes = self.against.iter().flat_map(|(_, changes)| changes);
        let mut all_compared = true;
        for change in changes {
            if change.is_worse() {
                return OutcomeClass::Bad;
            }
            all_compared &= change.is_compared();
        }
        let all_measured = !self.lines.is_empty() && self.lines.iter().all(Line::is_measured);
        match all_compared && all_measured {
            true => OutcomeClass::Good,
            false => OutcomeClass::Untested,
        }
    }
}

/// Measures; each figure is told as soon as it is known.
///
/// # Errors
/// [`CampaignError`] where nothing could be measured.
pub fn measure(
    request: &BenchRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(&Line) -> io::Result<()>,
) -> Result<BenchSummary, CampaignError> {
    let earlier = request.against.as_deref().map(earlier).transpose()?;
    let kernel_request = request.kernel.request()?;
    let mut machine = Machine::here(program::hash()?)?;
    let mut setting = Setting {
        kernel_spec: kernel_request.to_string(),
        kernel_release: "as of `run`".to_owned(),
        kernel_hash: "none".to_owned(),
        kvm_host: "as of `run`".to_owned(),
    };
    let mut lines = Vec::new();
    let mut take = |line: Line| -> Result<(), CampaignError> {
        context.check_interrupt()?;
        tell(&line)?;
        lines.push(line);
        Ok(())
    };
    if request.rows.iter().any(|row| !row.is_command()) {
        let kernel = context.fetch(&kernel_request)?;
        kernel.release().clone_into(&mut setting.kernel_release);
        kernel.hash().clone_into(&mut setting.kernel_hash);
        setting.kvm_host = on_hosts(request, context, kernel.as_ref(), &mut take)?;
    }
    command_lines(request, context, &mut take)?;
    machine.measured()?;
    let against = earlier.map(|earlier| {
        let today = Today {
            lines: &lines,
            machine: &machine,
            kernel: &setting.kernel_hash,
            kvm_host: &setting.kvm_host,
        };
        let changes = compare(today, &earlier);
        (earlier, changes)
    });
    Ok(BenchSummary {
        lines,
        setting,
        machine,
        against,
    })
}

/// Gets a line when it is measured.
type Take<'a> = &'a mut dyn FnMut(Line) -> Result<(), CampaignError>;

/// The rows that have a KVM host of ours; what that is.
fn on_hosts(
    request: &BenchRequest,
    context: Context<'_>,
    kernel: &dyn TestKernel,
    take: Take<'_>,
) -> Result<String, CampaignError> {
    let mut kvm_host = String::new();
    let sweep = SweepRequest::of(PathRequest::of(SWEPT));
    let sweep = sweep::plan(&sweep, &loaded(SWEPT, context)?, kernel)?;
    let part = SweepPlan {
        shard: Some(rows::PART),
        ..sweep.clone()
    };
    let judge = context.judge(kernel.symbols(), false);
    if request.rows.iter().any(|row| row.shares_host()) {
        let recorded = required_trial(&loaded(RECORDED, context)?, kernel)?;
        let peer = context
            .provider
            .peer(request.peer.as_deref(), context.progress);
        let host = HostRequest {
            kvm_host: request.kvm_host,
            peer: peer.as_deref().ok(),
            fresh: true,
            ..HostRequest::default()
        };
        let mut executor = context.start(host, kernel)?;
        kvm_host = executor.host();
        let mut bench = Bench {
            executor: executor.as_mut(),
            missing_peer: peer.as_ref().err().map(ToString::to_string),
            rounds: request.rounds,
            machine: MachineSpec::of(&sweep.trial),
            sweep,
            recorded,
            judge,
            progress: context.progress,
        };
        bench.measure(&request.rows, &mut *take)?;
    }
    let mut start = |what: &str, round: u32| {
        let of = request.rounds;
        context
            .progress
            .step(&format!("{what} {} of {of}", round + 1));
        let host = HostRequest {
            kvm_host: request.kvm_host,
            fresh: true,
            ..HostRequest::default()
        };
        let host = context.start(host, kernel)?;
        kvm_host = host.host();
        Ok::<_, ProviderError>(host)
    };
    if request.rows.contains(&Row::Shard) {
        let of = (&part, judge);
        take(rows::shard(of, request.rounds, |round| {
            start("part of a sweep,", round)
        }))?;
    }
    if request.rows.contains(&Row::HostStarts) {
        take(rows::host_starts(request.rounds, |round| {
            start("start", round)
        }))?;
    }
    Ok(kvm_host)
}

/// The rows that are command lines.
fn command_lines(
    request: &BenchRequest,
    context: Context<'_>,
    take: Take<'_>,
) -> Result<(), CampaignError> {
    let forget = |hash: &str| {
        if let Err(error) = context.provider.forget(hash) {
            tracing::warn!("the kernel {hash} stays in the cache: {error}");
        }
    };
    let commands = Commands {
        rounds: request.rounds,
        options: &request.run_options,
        checkout: request.checkout.as_deref(),
        forget: &forget,
        progress: context.progress,
        interrupt: context.interrupt,
    };
    for row in request.rows.iter().filter(|row| row.is_command()) {
        take(match row {
            Row::Warm => commands.warm(),
            Row::Library => commands.library(context.open(&[])?.len()),
            Row::Edit => commands.edit(),
            Row::CleanBuild => commands.clean_build(),
            Row::FirstRun => commands.first_run(),
            Row::Tests => commands.tests(),
            _ => continue,
        })?;
    }
    Ok(())
}

/// The figures in a file.
fn earlier(path: &Path) -> Result<Vec<Earlier>, AgainstError> {
    let text = input::text(path, input::WRITTEN).map_err(AgainstProblem::from);
    let read = text.and_then(|text| Ok(against::read(&text)?));
    read.map_err(|why| AgainstError {
        path: path.to_owned(),
        why,
    })
}

fn loaded(name: &str, context: Context<'_>) -> Result<Loaded, CampaignError> {
    let loaded = context.open(&[PathBuf::from(name)])?.pop();
    let not_found = || LibraryError::NotFound {
        name: name.to_owned(),
        near: String::new(),
    };
    loaded.ok_or_else(|| not_found().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::against::{Change, Compared, Figure, NotComparable, Side};
    use crate::bench::rows::Better;
    use crate::bench::series::Series;

    fn line(series: Series) -> Line {
        Line {
            row: Row::Boot,
            what: "a start",
            unit: "s",
            better: Better::Less,
            ours: series,
            peer: None,
            promises: Vec::new(),
            notes: Vec::new(),
            parameters: Vec::new(),
        }
    }

    fn change(verdict: Result<Change, NotComparable>) -> LineChange {
        let verdict = verdict.map(|change| Compared {
            change,
            ratio: 1.0,
            chance: 0.5,
        });
        LineChange {
            row: "boot".to_owned(),
            what: "a start".to_owned(),
            figures: vec![Figure {
                name: "ours",
                unit: "s".to_owned(),
                earlier: None,
                today: None,
                verdict,
            }],
            missing: None,
        }
    }

    fn class(series: Series, changes: Option<Vec<LineChange>>) -> OutcomeClass {
        let summary = BenchSummary {
            lines: vec![line(series)],
            setting: Setting {
                kernel_spec: String::new(),
                kernel_release: String::new(),
                kernel_hash: String::new(),
                kvm_host: String::new(),
            },
            machine: Machine::here(String::new()).unwrap(),
            against: changes.map(|changes| (Vec::new(), changes)),
        };
        summary.class()
    }

    #[test]
    fn only_what_was_measured_and_compared_is_good() {
        let measured = || Series {
            values: vec![1.0],
            failed: None,
        };
        let of = |changes| class(measured(), Some(changes));
        let missing = |side| LineChange {
            missing: Some(side),
            figures: Vec::new(),
            ..change(Ok(Change::Better))
        };
        let other = || change(Err(NotComparable::UnknownMachine));
        assert_eq!(class(measured(), None), OutcomeClass::Good);
        assert_eq!(
            class(Series::impossible("why"), None),
            OutcomeClass::Untested
        );
        let good = vec![change(Ok(Change::WithinNoise)), change(Ok(Change::Better))];
        assert_eq!(of(good), OutcomeClass::Good);
        assert_eq!(of(vec![missing(Side::Today)]), OutcomeClass::Good);
        assert_eq!(of(vec![missing(Side::Earlier)]), OutcomeClass::Untested);
        assert_eq!(of(vec![other()]), OutcomeClass::Untested);
        let worse = vec![other(), change(Ok(Change::Worse))];
        assert_eq!(of(worse.clone()), OutcomeClass::Bad);
        assert_eq!(
            class(Series::impossible("why"), Some(worse)),
            OutcomeClass::Bad
        );
    }
}
