//! What is promised, measured.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use super::Context;
use super::context::required_trial;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::sweep::{self, PathRequest, SweepRequest};
use crate::bench::rows::{self, Bench, Line, Row};
use crate::host::choice::KvmHost;
use crate::host::provider::{HostRequest, ProviderError};
use crate::judge::outcome::OutcomeClass;
use crate::report::json::Setting;
use crate::scenario::Loaded;
use crate::scenario::library::LibraryError;
use unwindlab_engine::plan::MachineSpec;

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
    /// The arguments with which [`Row::Library`] starts this program, to run the library on the
    /// same kernel and KVM host.
    pub library_arguments: Vec<OsString>,
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct BenchSummary {
    /// The figures, in the order of the rows.
    pub lines: Vec<Line>,
    /// What was measured, and where.
    pub setting: Setting,
}

impl BenchSummary {
    /// Good where there is every figure, whatever they are.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        match !self.lines.is_empty() && self.lines.iter().all(Line::is_measured) {
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
    let kernel_request = request.kernel.request()?;
    let kernel = context.fetch(&kernel_request)?;
    let kernel = kernel.as_ref();
    let mut lines = Vec::new();
    let mut take = |line: Line| -> Result<(), CampaignError> {
        context.check_interrupt()?;
        tell(&line)?;
        lines.push(line);
        Ok(())
    };
    let mut kvm_host = "as of `run`".to_owned();
    if request.rows.iter().any(|row| row.shares_host()) {
        let sweep = SweepRequest::of(PathRequest::of(SWEPT));
        let sweep = sweep::plan(&sweep, &loaded(SWEPT, context)?, kernel)?;
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
            judge: context.judge(kernel.symbols(), false),
            progress: context.progress,
        };
        bench.measure(&request.rows, &mut take)?;
    }
    if request.rows.contains(&Row::HostStarts) {
        take(rows::host_starts(request.rounds, |round| {
            let of = request.rounds;
            context
                .progress
                .step(&format!("start {} of {of}", round + 1));
            let host = HostRequest {
                kvm_host: request.kvm_host,
                fresh: true,
                ..HostRequest::default()
            };
            let host = context.start(host, kernel)?;
            kvm_host = host.host();
            Ok::<_, ProviderError>(host)
        }))?;
    }
    if request.rows.contains(&Row::Library) {
        take(rows::library(&request.library_arguments))?;
    }
    Ok(BenchSummary {
        lines,
        setting: Setting {
            kernel_spec: kernel_request.to_string(),
            kernel_release: kernel.release().to_owned(),
            kernel_hash: kernel.hash().to_owned(),
            kvm_host,
        },
    })
}

fn loaded(name: &str, context: Context<'_>) -> Result<Loaded, CampaignError> {
    let loaded = context.open(&[PathBuf::from(name)])?.pop();
    loaded.ok_or_else(|| LibraryError::NotFound(name.to_owned()).into())
}
