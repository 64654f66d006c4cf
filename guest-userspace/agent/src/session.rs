//! The session with the host, from `Hello` to `Bye`.

mod announce;

use std::path::Path;
use std::sync::Arc;

use unwindlab_abi::user_mode::Asker;
use unwindlab_abi::{
    ABI_VERSION, AgentMessage, EventSource, EventSpec, GuestPlan, HostReply, InterruptCounts,
    KernelMemory, Observation, Tracing, WorkloadKind,
};

use crate::bpf::{BpfClient, BpfError};
use crate::helper::{Helper, KnownThread};
use crate::interrupts;
use crate::kernel_threads;
use crate::kmsg;
use crate::lab::{Lab, LabError};
use crate::mailbox::{Link, LinkError};
use crate::memory;
use crate::perf::{self, PerfError, PerfSession};
use crate::perf_tool::{PerfTool, PerfToolError};
use crate::physical::PhysicalError;
use crate::shared::SharedPages;
use crate::survey::{Survey, SurveyError};
use crate::system::{self, QuietConsole, SystemError};
use crate::tracefs::{Tracefs, TracefsError};
use crate::user_mode::{UserMode, UserModeError};
use crate::workload::{FinishedWorkload, Workload, WorkloadError};

/// Bytes of kernel log in one message.
const LOG_PIECE: usize = 32 * 1024;

/// Places of a survey in one message.
const SURVEY_PIECE: usize = 256;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum SessionError {
    /// The guest cannot be set up.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The events cannot be opened.
    #[error(transparent)]
    Perf(#[from] PerfError),
    /// The shared words cannot be mapped.
    #[error("cannot map the shared words: {0}")]
    Map(#[from] rustix::io::Errno),
    /// The addresses of the shared words are not known.
    #[error("shared words: {0}")]
    Physical(#[from] PhysicalError),
    /// The workload cannot start, or failed.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The lab client is missing or failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The distribution's perf failed.
    #[error(transparent)]
    PerfTool(#[from] PerfToolError),
    /// The kernel's tracers cannot be used.
    #[error(transparent)]
    Survey(#[from] SurveyError),
    /// Unwinding in user mode cannot be set up.
    #[error(transparent)]
    UserMode(#[from] UserModeError),
    /// The BPF client cannot be set up.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// Instances of tracefs cannot be used.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The thread for the host's commands cannot be made.
    #[error("cannot start the helper: {0}")]
    Helper(std::io::Error),
    /// The kernel log cannot be read.
    #[error("cannot read the kernel log: {0}")]
    KernelLog(std::io::Error),
    /// The kernel's memory use is not known.
    #[error("cannot read the kernel's memory use: {0}")]
    KernelMemory(std::io::Error),
    /// The kernel threads are not known.
    #[error("cannot list the kernel threads: {0}")]
    KernelThreads(std::io::Error),
    /// The numbers of interrupts are not known.
    #[error("cannot count interrupts: {0}")]
    Interrupts(std::io::Error),
    /// The host cannot be reached.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The host ends the session.
    #[error("the host says stop: {0}")]
    Stopped(String),
    /// The host's answer does not fit the question.
    #[error("the host answered {question} with {answer}")]
    Answer {
        question: &'static str,
        answer: &'static str,
    },
}

impl SessionError {
    /// Whether the kernel lacks something, as opposed to something going wrong.
    const fn is_unsupported(&self) -> bool {
        match self {
            Self::Perf(error) => error.is_unsupported(),
            Self::Workload(error) => error.is_unsupported(),
            Self::Lab(error) => error.is_unsupported(),
            Self::Survey(error) => error.is_unsupported(),
            Self::Tracefs(error) => error.is_unsupported(),
            _ => false,
        }
    }
}

/// Runs a whole session and tells the host how it ended. The returned error is for the console: the
/// host has got it, if possible.
///
/// # Errors
/// [`SessionError`].
pub fn run() -> Result<(), SessionError> {
    system::mount_proc()?;
    system::pin_memory()?;
    system::keep_timers()?;
    let mut link = Link::new()?;
    let ended = converse(&mut link);
    if let Err(error) = &ended {
        let last_words = match error {
            SessionError::Link(_) | SessionError::Stopped(_) | SessionError::Answer { .. } => {
                return ended;
            }
            unsupported if unsupported.is_unsupported() => AgentMessage::Unsupported {
                reason: error.to_string(),
            },
            SessionError::PerfTool(tool) => AgentMessage::PerfToolFailed {
                what: tool.to_string(),
            },
            _ => AgentMessage::Failed {
                what: error.to_string(),
            },
        };
        // Nothing follows, so the answer does not matter.
        let _ = link.ask(&last_words)?;
    }
    ended
}

fn converse(link: &mut Link) -> Result<(), SessionError> {
    system::mount_dev()?;
    let cpus = system::online_cpus()?;
    let plan = hello(link, &cpus)?;
    // First, so that a kernel without the feature is recognized as such.
    perf::probe(&plan.tracing)?;
    // From here on, since the kernel warns of the next. What prints may be a thread that looks at the level later.
    let quiet = QuietConsole::new()?;
    system::unleash_perf()?;
    system::set_sysctls(&plan.sysctls)?;
    let sigtrap = { plan.user_mode.as_ref() }.is_some_and(|it| it.ask == Asker::Sigtrap);
    let tracefs_needed = plan.survey.is_some() || plan.tracefs.is_some() || sigtrap;
    system::mount_tracefs(&plan.tracing, tracefs_needed)?;

    let mut tracing = PerfSession::open(&plan.tracing, &cpus, Path::new(system::TRACEFS))?;
    let mut user_mode = None;
    if let Some(plan) = &plan.user_mode {
        let mut loaded = UserMode::load(plan)?;
        if let Some(program) = loaded.program()? {
            tracing.attach(program)?;
        }
        user_mode = Some(loaded);
    }
    let mut bpf = None;
    if let Some(plan) = &plan.bpf {
        let loaded = BpfClient::load(plan)?;
        tracing.attach(loaded.program())?;
        bpf = Some(loaded);
    }
    if plan.workload.kind == WorkloadKind::Program {
        // It looks for the kinds of perf events there.
        system::mount_sys()?;
    }
    // Its threads inherit events, and others are of its threads.
    let shared = Arc::new(SharedPages::new()?);
    let watches_tasks = |spec: &EventSpec| matches!(spec.source, EventSource::TaskField { .. });
    let watched = plan.tracing.events.iter().any(watches_tasks);
    let unwinds = plan.user_mode.as_ref();
    let workload = Workload::start(&plan.workload, &cpus, Arc::clone(&shared), watched, unwinds)?;
    tracing.open_of_threads(workload.tids(), workload.tasks())?;
    announce::tracing(link, &tracing)?;
    let mut lab = plan.lab.as_ref().map(Lab::open).transpose()?;
    if let Some(lab) = &lab {
        announce::lab(link, lab)?;
    }
    announce::workload(link, &workload)?;
    if let Some(user_mode) = &mut user_mode {
        user_mode.watch(workload.tids())?;
        announce::user_mode(link, user_mode)?;
    }
    if let Some(bpf) = &bpf {
        bpf.opt_in(workload.tids())?;
        announce::bpf(link, bpf)?;
    }
    let root = Path::new(system::TRACEFS);
    let tracefs = { plan.tracefs.as_ref() }.map(|it| Tracefs::open(it, &cpus, root));
    let mut tracefs = tracefs.transpose()?;
    if let Some(tracefs) = &tracefs {
        announce::tracefs(link, tracefs)?;
    }

    // If every iteration is a thread that ends, the memory that it leaves behind is of interest.
    let ends = plan.workload.kind == WorkloadKind::Exit;
    let memory_before = ends.then(memory::kernel_memory).transpose();
    let memory_before = memory_before.map_err(SessionError::KernelMemory)?;
    let mut tool = match &plan.perf_tool {
        Some(tool) => {
            system::mount_sys()?;
            Some(PerfTool::record(tool)?)
        }
        None => None,
    };
    let counters = tool.is_some() || has_counters(&plan.tracing);
    let interrupts_before = counters.then(interrupts::count).transpose();
    let interrupts_before = interrupts_before.map_err(SessionError::Interrupts)?;
    let helper = plan.commands.then(|| start_helper(&workload, &cpus));
    let helper = helper.transpose().map_err(SessionError::Helper)?;
    let survey = plan.survey.map(|survey| {
        let tids = workload.tids();
        Survey::begin(survey, tids, Path::new(system::TRACEFS))
    });
    let survey = survey.transpose()?;
    // Before the host is told that it may inject, so that each injection finds the events enabled.
    tracing.enable()?;
    if let Some(tracefs) = &tracefs {
        tracefs.start()?;
    }
    if let Some(operation) = &plan.operation {
        shared.set_operation(tracing.call_of(operation)?);
    }
    if let Some(lab) = &lab {
        lab.start(workload.tids())?;
    }
    // Injections and the workload leave this thread little of a CPU. Behind them, the changes began when most of the
    // injections had been made.
    // Those of the lab wait for the workload, where a schedule may make CPUs stand still.
    let gate = workload.gate();
    let disturbed = { lab.as_mut() }.map_or(Ok(()), |it| it.disturb(&gate));
    let churned = tracefs.as_mut().map_or(Ok(()), Tracefs::disturb);
    expect_ok(link, "Ready", &AgentMessage::Ready)?;
    workload.release();
    // Asleep until the last thread has ended.
    let ended = workload.join();
    let surveyed = survey.as_ref().map_or(Ok(()), Survey::stop);
    drop(helper);
    let untraced = tracefs.as_mut().map_or(Ok(()), Tracefs::stop);
    let stopped = lab.as_mut().map_or(Ok(()), Lab::stop);
    tracing.disable()?;
    let recorded = tool.as_mut().map_or(Ok(()), PerfTool::stop);
    drop(quiet);
    let FinishedWorkload {
        iterations,
        mut observations,
    } = ended?;
    disturbed.and(stopped)?;
    churned.and(untraced)?;
    recorded?;
    surveyed?;
    expect_ok(link, "Finished", &AgentMessage::Finished { iterations })?;

    observations.extend(tracing.refused().iter().cloned());
    observations.extend(observe(&plan, interrupts_before, memory_before)?);
    if let Some(survey) = survey {
        for piece in survey.places()?.chunks(SURVEY_PIECE) {
            let piece = AgentMessage::Surveyed(piece.to_vec());
            expect_ok(link, "Surveyed", &piece)?;
        }
    }
    // The host reads mapped buffers until the end.
    if let Some(tracefs) = &mut tracefs {
        for part in tracefs.read()? {
            expect_ok(link, "Tracefs", &AgentMessage::Tracefs(part))?;
        }
    }
    if let Some(tool) = tool {
        let script = tool.script()?;
        for piece in kmsg::pieces(&script, LOG_PIECE) {
            let piece = AgentMessage::PerfScript(piece.to_owned());
            expect_ok(link, "PerfScript", &piece)?;
        }
        for piece in tool.data()?.chunks(LOG_PIECE) {
            let piece = AgentMessage::PerfData(piece.to_vec());
            expect_ok(link, "PerfData", &piece)?;
        }
    }
    for seen in observations {
        expect_ok(link, "Observed", &AgentMessage::Observed(seen))?;
    }
    send_kernel_log(link)?;
    let _ = link.ask(&AgentMessage::Bye)?;
    Ok(())
}

/// What is observed after the workload, beside its threads.
fn observe(
    plan: &GuestPlan,
    interrupts_before: Option<InterruptCounts>,
    memory_before: Option<KernelMemory>,
) -> Result<Vec<Observation>, SessionError> {
    let mut observations = Vec::new();
    if plan.kernel_threads {
        let threads = kernel_threads::list().map_err(SessionError::KernelThreads)?;
        let threads = threads.into_iter();
        observations.extend(threads.map(|tid| Observation::KernelThread { tid }));
    }
    if let Some(before) = interrupts_before {
        let after = interrupts::count().map_err(SessionError::Interrupts)?;
        observations.push(Observation::Interrupts { before, after });
    }
    if let Some(before) = memory_before {
        let after = memory::settled_kernel_memory().map_err(SessionError::KernelMemory)?;
        observations.push(Observation::Memory { before, after });
    }
    Ok(observations)
}

/// Whether the CPUs' counters are used. Their overflows count as interrupts.
fn has_counters(tracing: &Tracing) -> bool {
    let hardware = |source: &EventSource| matches!(source, EventSource::Hardware(_));
    tracing.events.iter().any(|spec| hardware(&spec.source))
}

/// Starts it on the last CPU: workload threads fill the CPUs from the first on.
fn start_helper(workload: &Workload, cpus: &[u32]) -> std::io::Result<Helper> {
    let known = workload.tids().iter().zip(workload.announces());
    let known = known.map(|(&tid, announce)| KnownThread {
        tid,
        frames: announce.stack.depth(),
    });
    let cpu = cpus.last().copied().unwrap_or(0);
    Helper::start(cpu, known.collect(), Arc::clone(workload.shared()))
}

fn hello(link: &mut Link, cpus: &[u32]) -> Result<GuestPlan, SessionError> {
    let uname = rustix::system::uname();
    let hello = AgentMessage::Hello {
        abi_version: ABI_VERSION,
        release: uname.release().to_string_lossy().into_owned(),
        cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
    };
    match link.ask(&hello)? {
        HostReply::Plan(plan) => Ok(*plan),
        other => Err(wrong_answer("Hello", other)),
    }
}

fn send_kernel_log(link: &mut Link) -> Result<(), SessionError> {
    let log = kmsg::read(Path::new("/dev/kmsg")).map_err(SessionError::KernelLog)?;
    for piece in kmsg::pieces(&log, LOG_PIECE) {
        expect_ok(
            link,
            "KernelLog",
            &AgentMessage::KernelLog(piece.to_owned()),
        )?;
    }
    Ok(())
}

fn expect_ok(
    link: &mut Link,
    question: &'static str,
    message: &AgentMessage,
) -> Result<(), SessionError> {
    match link.ask(message)? {
        HostReply::Ok => Ok(()),
        other => Err(wrong_answer(question, other)),
    }
}

fn wrong_answer(question: &'static str, reply: HostReply) -> SessionError {
    let answer = match reply {
        HostReply::Stop { reason } => return SessionError::Stopped(reason),
        HostReply::Ok => "Ok",
        HostReply::Plan(_) => "a plan",
        HostReply::Located(_) => "addresses",
        HostReply::Task(_) => "a task",
    };
    SessionError::Answer { question, answer }
}
