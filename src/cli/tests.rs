//! `run` with a provider that has one kernel, and hosts that bring home what they are told.

mod sweep;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use clap::Parser as _;
use tempfile::TempDir;
use unwindlab_guest_kernel::build::patch::Patch;

use super::analysis::Analysis;
use super::args::{Cli, Command};
use super::error::CommandError;
use super::run::run;
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, ProviderError, TestKernel};
use crate::interrupt::Interrupt;
use crate::plan::{Executor, InfraError, Progress, TrialPlan};
use crate::scenario::KernelSymbols;
use unwindlab_oracle::invariant::Invariant;
use unwindlab_oracle::invariant::finding::Findings;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

const HOLDS: Invariant = Invariant::new("H1", "for tests", "nothing", |_, tally| tally.holds());

/// A kernel with or without the feature.
pub(super) struct Kernel {
    pub(super) has_feature: bool,
}

impl TestKernel for Kernel {
    fn hash(&self) -> &'static str {
        "abc"
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

impl KernelSymbols for Kernel {
    fn addresses(&self, name: &str) -> Vec<u64> {
        let there = self.has_feature && name == "unwind_deferred_request";
        if there { vec![1] } else { Vec::new() }
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

type Recorded = Result<Recording, InfraError>;

/// What hosts bring home, trial by trial.
struct Bench {
    has_feature: bool,
    recorded: Arc<Mutex<VecDeque<Recorded>>>,
    fetched: AtomicBool,
    hosts_started: AtomicU32,
    interrupt: Interrupt,
    /// Interrupts the user's way, in the middle of this trial.
    interrupt_in: Option<usize>,
}

impl Bench {
    fn new(recorded: impl IntoIterator<Item = Recorded>) -> Self {
        Self {
            has_feature: true,
            recorded: Arc::new(Mutex::new(recorded.into_iter().collect())),
            fetched: AtomicBool::new(false),
            hosts_started: AtomicU32::new(0),
            interrupt: Interrupt::default(),
            interrupt_in: None,
        }
    }
}

struct Host {
    name: String,
    recorded: Arc<Mutex<VecDeque<Recorded>>>,
    interrupt: Interrupt,
    interrupt_in: Option<usize>,
}

impl Executor for Host {
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

    fn sweep(
        &mut self,
        _: &crate::plan::sweep::SweepPlan,
        _: &mut dyn FnMut(crate::plan::sweep::Message) -> bool,
    ) -> Result<(), InfraError> {
        unreachable!("no test of the command line sweeps")
    }
}

impl Provider for Bench {
    fn fetch(
        &self,
        request: &KernelRequest,
        _: &dyn Progress,
        _: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, ProviderError> {
        self.fetched.store(true, Relaxed);
        if request.to_string() != "stock" {
            return Err(ProviderError::Usage(format!("no such kernel: {request}")));
        }
        Ok(Box::new(Kernel {
            has_feature: self.has_feature,
        }))
    }

    fn series(&self, _: &Path) -> Result<Vec<Patch>, ProviderError> {
        Ok(Vec::new())
    }

    fn path(&self, _: &str) -> Result<PathBuf, ProviderError> {
        Ok("/vmlinux".into())
    }

    fn list(&self) -> Result<Vec<String>, ProviderError> {
        Ok(Vec::new())
    }

    fn executor(
        &self,
        host: KvmHost,
        seed: Option<u64>,
        _: &dyn TestKernel,
        _: Option<&Path>,
        _: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        if host == KvmHost::Native {
            return Err(ProviderError::Unavailable("no /dev/kvm".to_owned()));
        }
        let name = match seed {
            Some(seed) => format!("bench of seed {seed}"),
            None => {
                self.hosts_started.fetch_add(1, Relaxed);
                "bench".to_owned()
            }
        };
        Ok(Box::new(Host {
            name,
            recorded: Arc::clone(&self.recorded),
            interrupt: interrupt.clone(),
            interrupt_in: self.interrupt_in,
        }))
    }

    fn doctor(&self) -> Result<String, ProviderError> {
        Ok(String::new())
    }
}

fn ended(end: TrialEnd) -> Recorded {
    Ok(Recording {
        end,
        console: "hello\n".to_owned(),
        ..Recording::default()
    })
}

fn died() -> Recorded {
    Err(InfraError {
        reason: "QEMU died".to_owned(),
        console: "outer console\n".to_owned(),
    })
}

/// A folder with scenarios `a`, `b` and `c`, and room for results.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let text = format!(
            "name: {name}\ndescription: For tests.\nworkload: {{ kind: spin, frames: 3 }}\n"
        );
        fs::write(folder.path().join(format!("{name}.yaml")), text).unwrap();
    }
    folder
}

/// Runs the scenarios of a folder with more arguments; results go to `out.json` there.
fn run_in(folder: &TempDir, more: &[&str], bench: &Bench) -> Result<u8, CommandError> {
    let at = |name: &str| folder.path().join(name).display().to_string();
    let fixed = [
        "unwindlab".to_owned(),
        "run".to_owned(),
        folder.path().display().to_string(),
        "--json".to_owned(),
        at("out.json"),
        "--artifacts".to_owned(),
        at("kept"),
    ];
    let more = more.iter().map(ToString::to_string);
    let cli = Cli::try_parse_from(fixed.into_iter().chain(more)).unwrap();
    let Command::Run(args) = cli.command else {
        panic!("no run");
    };
    let analysis = Analysis {
        invariants: &[HOLDS],
        findings: Box::new(Findings::default()),
    };
    run(args, bench, &analysis, &bench.interrupt)
}

/// Name and outcome of every result in `out.json`.
fn outcomes(folder: &TempDir) -> Vec<String> {
    let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
    text.lines()
        .map(|line| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| json[name].as_str().unwrap().to_owned();
            format!("{} {}", field("name"), field("outcome"))
        })
        .collect()
}

#[test]
fn all_pass() {
    let folder = folder();
    let bench = Bench::new([(); 3].map(|()| ended(TrialEnd::Completed)));
    assert_eq!(run_in(&folder, &[], &bench).unwrap(), 0);
    assert_eq!(outcomes(&folder), ["a pass", "b pass", "c pass"]);
    assert_eq!(
        bench.hosts_started.load(Relaxed),
        1,
        "one host for all of them"
    );
    let console = folder.path().join("kept/a/console.log");
    assert_eq!(fs::read_to_string(console).unwrap(), "hello\n");
}

#[test]
fn one_fails() {
    let folder = folder();
    let bench = Bench::new([
        ended(TrialEnd::Completed),
        ended(TrialEnd::Hang { places: Vec::new() }),
        ended(TrialEnd::Completed),
    ]);
    assert_eq!(run_in(&folder, &[], &bench).unwrap(), 1);
    assert_eq!(outcomes(&folder), ["a pass", "b hang", "c pass"]);
}

#[test]
fn a_host_that_died_is_replaced_but_its_scenario_is_not_run_again() {
    let folder = folder();
    let bench = Bench::new([
        died(),
        ended(TrialEnd::Completed),
        ended(TrialEnd::Completed),
    ]);
    assert_eq!(run_in(&folder, &[], &bench).unwrap(), 125);
    assert_eq!(outcomes(&folder), ["a infra-error", "b pass", "c pass"]);
    assert_eq!(bench.hosts_started.load(Relaxed), 2);
    let console = folder.path().join("kept/a/console.log");
    assert_eq!(fs::read_to_string(console).unwrap(), "outer console\n");
}

#[test]
fn a_kernel_without_the_feature_is_skipped_unbooted() {
    let folder = folder();
    let mut bench = Bench::new([]);
    bench.has_feature = false;
    assert_eq!(
        run_in(&folder, &["--kvm-host", "native"], &bench).unwrap(),
        125
    );
    assert_eq!(outcomes(&folder), ["a skip", "b skip", "c skip"]);
    assert_eq!(bench.hosts_started.load(Relaxed), 0);
}

#[test]
fn no_host() {
    let folder = folder();
    let error = run_in(&folder, &["--kvm-host", "native"], &Bench::new([])).unwrap_err();
    assert_eq!(
        (error.to_string(), error.exit_code()),
        ("no /dev/kvm".to_owned(), 125)
    );
    assert!(!folder.path().join("out.json").exists());
}

#[test]
fn a_deterministic_run_has_a_host_of_its_own_kind() {
    let folder = folder();
    let native = ["--deterministic", "--kvm-host", "native"];
    let error = run_in(&folder, &native, &Bench::new([])).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    let bench = Bench::new([(); 3].map(|()| ended(TrialEnd::Completed)));
    assert_eq!(run_in(&folder, &["--deterministic"], &bench).unwrap(), 0);
    assert_eq!(bench.hosts_started.load(Relaxed), 0);
    let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
    let hash = Recording {
        end: TrialEnd::Completed,
        console: "hello\n".to_owned(),
        ..Recording::default()
    }
    .sha256()
    .unwrap();
    assert_eq!(text.matches(&hash).count(), 3, "of each scenario");
    assert!(text.contains("bench of seed 0"), "{text}");
}

#[test]
fn no_such_kernel() {
    let error = run_in(&folder(), &["--kernel", "stock:1"], &Bench::new([])).unwrap_err();
    assert_eq!(error.to_string(), "no such kernel: stock:1");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn wrong_scenarios_are_known_before_anything_is_started() {
    let folder = folder();
    fs::write(
        folder.path().join("b.yaml"),
        "\
name: b
description: For tests.
workload: { kind: spin, frames: 3 }
inject: [ { nmi: { at: { kernel: nowhere } } } ]
",
    )
    .unwrap();
    let bench = Bench::new([]);
    let error = run_in(&folder, &[], &bench).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(
        text.ends_with("b.yaml:4:24: the kernel has no symbol `nowhere`"),
        "{text}"
    );
    assert_eq!(bench.hosts_started.load(Relaxed), 0);

    fs::write(folder.path().join("b.yaml"), "name: c\n").unwrap();
    let bench = Bench::new([]);
    assert_eq!(run_in(&folder, &[], &bench).unwrap_err().exit_code(), 2);
    assert!(!bench.fetched.load(Relaxed));
}

#[test]
fn results_that_cannot_be_written_are_known_before_anything_is_started() {
    for option in ["--junit", "--artifacts"] {
        let folder = folder();
        fs::write(folder.path().join("file"), "").unwrap();
        let path = folder.path().join("file/x").display().to_string();
        let bench = Bench::new([]);
        let more = match option {
            "--artifacts" => vec!["--junit", "/dev/null"],
            _ => vec![option, &path],
        };
        if option == "--artifacts" {
            // The option is given once by `run_in` already: make that one a file.
            fs::write(folder.path().join("kept"), "").unwrap();
        }
        let error = run_in(&folder, &more, &bench).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert!(error.to_string().starts_with("cannot write "), "{error}");
        assert!(!bench.fetched.load(Relaxed));
    }
}

#[test]
fn filters() {
    let folder = folder();
    let bench = Bench::new([ended(TrialEnd::Completed)]);
    assert_eq!(run_in(&folder, &["--filter", "b"], &bench).unwrap(), 0);
    assert_eq!(outcomes(&folder), ["b pass"]);
    let error = run_in(&folder, &["--filter", "z"], &Bench::new([])).unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn an_interrupt_keeps_what_is_done() {
    let folder = folder();
    let mut bench = Bench::new([ended(TrialEnd::Completed), died()]);
    bench.interrupt_in = Some(1);
    assert_eq!(run_in(&folder, &[], &bench).unwrap(), 130);
    assert_eq!(outcomes(&folder), ["a pass"]);
}

#[test]
fn command_line() {
    use clap::CommandFactory as _;
    Cli::command().debug_assert();
    for wrong in [
        &["unwindlab"][..],
        &["unwindlab", "walk"],
        &["unwindlab", "run", "--kvm-host", "magic"],
        &["unwindlab", "run", "--seed", "3"],
        &["unwindlab", "run", "--deterministic", "--seed", "x"],
    ] {
        assert_eq!(Cli::try_parse_from(wrong).unwrap_err().exit_code(), 2);
    }
}
