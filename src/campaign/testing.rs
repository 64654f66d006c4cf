//! A provider with one kernel, and hosts that bring home what they are told.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use unwindlab_guest_kernel::build::generate::{Generated, MUTANT, REACHED};
use unwindlab_guest_kernel::{BuildError, BuildSpec, Verified};

use super::Context;
use super::analysis::Analysis;
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{HostRequest, Provider, ProviderError, TestKernel};
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::sweep::{Message, SweepPlan};
use unwindlab_engine::plan::{Executor, InfraError, Progress, TrialPlan};
use unwindlab_oracle::invariant::Invariant;
use unwindlab_oracle::invariant::finding::Findings;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_scenario::KernelSymbols;

/// No findings, and one invariant that always holds.
pub(crate) fn analysis() -> Analysis {
    Analysis {
        invariants: &[HOLDS],
        findings: Box::new(Findings::default()),
    }
}

/// An invariant that always holds.
const HOLDS: Invariant = Invariant::new("H1", "for tests", "nothing", |_, tally| tally.holds());

/// A kernel with or without the feature.
#[derive(Default)]
pub(crate) struct FakeKernel {
    pub(crate) has_feature: bool,
    /// The patch that was generated for it, if there is one.
    pub(crate) generated: Option<String>,
}

impl TestKernel for FakeKernel {
    fn hash(&self) -> &str {
        self.generated.as_deref().unwrap_or("abc")
    }

    fn release(&self) -> &'static str {
        "7.2.0"
    }

    fn path(&self) -> &Path {
        Path::new("/vmlinux")
    }

    fn symbols(&self) -> &dyn KernelSymbols {
        self
    }
}

impl KernelSymbols for FakeKernel {
    fn addresses(&self, name: &str) -> Vec<u64> {
        let feature = self.has_feature && name == "unwind_deferred_request";
        // Functions that tests name.
        let has_mutants = self.generated.as_deref() == Some("generated:all");
        let is_choice = has_mutants && [MUTANT, REACHED].contains(&name);
        if feature || is_choice || ["f", "g", "p"].contains(&name) {
            vec![1]
        } else {
            Vec::new()
        }
    }

    fn size(&self, _: &str) -> Option<u64> {
        None
    }

    fn similar(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn current_task_offset(&self) -> Option<u64> {
        Some(0)
    }

    fn resolve(&self, _: u64) -> Option<(String, u64)> {
        None
    }
}

/// Progress that nobody watches.
pub(crate) struct Quiet;

impl Progress for Quiet {
    fn step(&self, _: &str) {}

    fn bytes(&self, _: u64, _: u64) {}
}

pub(crate) type Recorded = Result<Recording, InfraError>;

/// One kernel, and hosts that bring home what they are told, trial by trial.
pub(crate) struct FakeProvider {
    pub(crate) has_feature: bool,
    recorded: Arc<Mutex<VecDeque<Recorded>>>,
    /// What a sweep sends.
    pub(crate) messages: Vec<Message>,
    /// The plans of sweeps.
    pub(crate) plans: Arc<Mutex<Vec<SweepPlan>>>,
    pub(crate) fetched: AtomicBool,
    pub(crate) hosts_started: AtomicU32,
    /// Whether a guest that stands still in its boot may be a host's doing.
    pub(crate) is_doubtful: bool,
    /// Whether any kernel can be built.
    pub(crate) builds: bool,
    /// The mutants that are generated.
    pub(crate) generated: Generated,
    /// The kernels that were forgotten.
    pub(crate) forgotten: Mutex<Vec<String>>,
    analysis: Analysis,
    pub(crate) interrupt: Interrupt,
    /// Interrupts the user's way, in the middle of this trial, or before this message of a sweep.
    pub(crate) interrupt_in: Option<usize>,
}

impl FakeProvider {
    /// What commands run with.
    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            provider: self,
            analysis: &self.analysis,
            progress: &Quiet,
            interrupt: &self.interrupt,
            fresh: true,
        }
    }

    pub(crate) fn new(recorded: impl IntoIterator<Item = Recorded>) -> Self {
        Self {
            has_feature: true,
            recorded: Arc::new(Mutex::new(recorded.into_iter().collect())),
            messages: Vec::new(),
            plans: Arc::default(),
            fetched: AtomicBool::new(false),
            hosts_started: AtomicU32::new(0),
            is_doubtful: false,
            builds: false,
            generated: Generated::default(),
            forgotten: Mutex::default(),
            analysis: analysis(),
            interrupt: Interrupt::default(),
            interrupt_in: None,
        }
    }
}

struct FakeHost {
    name: String,
    recorded: Arc<Mutex<VecDeque<Recorded>>>,
    messages: Vec<Message>,
    plans: Arc<Mutex<Vec<SweepPlan>>>,
    is_doubtful: bool,
    interrupt: Interrupt,
    interrupt_in: Option<usize>,
}

impl Executor for FakeHost {
    fn host(&self) -> String {
        self.name.clone()
    }

    fn run(&mut self, _: &TrialPlan, _: &dyn Progress) -> Recorded {
        if let Some(trials) = &mut self.interrupt_in {
            match trials.checked_sub(1) {
                Some(left) => *trials = left,
                None => self.interrupt.set(),
            }
        }
        self.recorded.lock().unwrap().pop_front().unwrap()
    }

    fn distrust(&mut self) -> bool {
        self.is_doubtful
    }

    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        self.plans.lock().unwrap().push(plan.clone());
        let (interrupt, number) = (self.interrupt.clone(), self.interrupt_in);
        let mut messages = self.messages.drain(..).enumerate();
        let went_on = messages.all(|(at, message)| {
            if number == Some(at) {
                interrupt.set();
            }
            take(message)
        });
        match went_on {
            true => Ok(()),
            false => Err(InfraError {
                reason: "no more is wanted".to_owned(),
                console: String::new(),
            }),
        }
    }
}

impl Provider for FakeProvider {
    fn fetch(
        &self,
        request: &KernelRequest,
        _: &dyn Progress,
        _: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, ProviderError> {
        self.fetched.store(true, Relaxed);
        if request.to_string() != "stock" && !self.builds {
            return Err(ProviderError::Usage(format!("no such kernel: {request}")));
        }
        let name = request.to_string();
        let patch = name.rsplit(" + ").next().filter(|it| *it != name);
        let is_generated = |it: &&str| it.starts_with("generated:");
        Ok(Box::new(FakeKernel {
            has_feature: self.has_feature,
            generated: patch.filter(is_generated).map(str::to_owned),
        }))
    }

    fn generate(
        &self,
        _: &BuildSpec,
        _: &dyn Fn(&str) -> bool,
        _: &(dyn Progress + Sync),
        _: &Interrupt,
    ) -> Result<Generated, ProviderError> {
        Ok(self.generated.clone())
    }

    fn forget(&self, hash: &str) -> Result<(), ProviderError> {
        self.forgotten.lock().unwrap().push(hash.to_owned());
        Ok(())
    }

    fn path(&self, _: &str) -> Result<PathBuf, ProviderError> {
        Ok("/vmlinux".into())
    }

    fn list(&self) -> Result<Vec<String>, ProviderError> {
        Ok(Vec::new())
    }

    fn verify_cache(&self, _: &dyn Progress) -> Result<Verified, ProviderError> {
        Ok(Verified::default())
    }

    fn executor(
        &self,
        request: HostRequest<'_>,
        _: &dyn TestKernel,
        _: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        if request.kvm_host == KvmHost::Native {
            return Err(ProviderError::Unavailable("no /dev/kvm".to_owned()));
        }
        let name = match request.seed {
            Some(seed) => format!("bench of seed {seed}"),
            None => {
                self.hosts_started.fetch_add(1, Relaxed);
                "bench".to_owned()
            }
        };
        Ok(Box::new(FakeHost {
            name,
            recorded: Arc::clone(&self.recorded),
            messages: self.messages.clone(),
            plans: Arc::clone(&self.plans),
            is_doubtful: self.is_doubtful,
            interrupt: interrupt.clone(),
            interrupt_in: self.interrupt_in,
        }))
    }

    fn doctor(&self) -> Result<String, ProviderError> {
        Ok(String::new())
    }
}

/// A patch that does not apply.
pub(crate) fn unbuildable() -> BuildError {
    BuildError::Patch {
        name: "x.patch".to_owned(),
        to: "Linux 7.2".to_owned(),
        message: "x.c: no such file".to_owned(),
    }
}

pub(crate) fn ended(end: TrialEnd) -> Recorded {
    Ok(Recording {
        end,
        console: "hello\n".to_owned(),
        ..Recording::default()
    })
}

pub(crate) fn died() -> Recorded {
    Err(InfraError {
        reason: "QEMU died".to_owned(),
        console: "Oops: the outer kernel\n".to_owned(),
    })
}

/// A folder with scenarios `a`, `b` and `c`, and room for results.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let text = format!(
            "name: {name}\ndescription: For tests.\nworkload: {{ kind: spin, frames: 3 }}\n"
        );
        fs::write(folder.path().join(format!("{name}.yaml")), text).unwrap();
    }
    folder
}
