//! The conversation with the guest's agent: keeps what it announces, and answers what it asks.

mod budget;
mod outputs;

pub(crate) use outputs::OutputCursor;

use unwindlab_abi::ABI_VERSION;
use unwindlab_abi::mailbox::{self, Header, MailboxError, PAGE_SIZE};
use unwindlab_abi::message::{AgentMessage, HostReply, MAX_LOCATE, Program, UserSymbol};
use unwindlab_abi::plan::GuestPlan;
use unwindlab_abi::survey::MAX_PLACES;
use unwindlab_abi::tracefs::TracefsBuffer;
use unwindlab_abi::user_mode::UserModeAnnounce;
use unwindlab_vmm::{AccessError, AddressSpace, Memory};

use super::announced::{self, Once};
use super::error::SessionError;
use super::protocol::{State, Word};
use super::shared::SharedArea;
use crate::plan::Stage;
use unwindlab_oracle::trace::lab::reader::may_be_log;
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_oracle::trace::ring::RingReader;
use unwindlab_oracle::trace::tracefs::TracefsLog;
use unwindlab_oracle::trace::user_mode::UserModeLog;

/// Longest kernel log kept, in bytes; the guest may write any amount.
const LOG_LIMIT: usize = 4 << 20;
/// Longest output of the distribution's perf, in bytes; the agent sends less.
const SCRIPT_LIMIT: usize = 8 << 20;
/// Largest recording of the distribution's perf, in bytes; the agent sends less.
const PERF_DATA_LIMIT: usize = 16 << 20;
/// Most rings, events, threads and symbols that an agent may announce.
const ANNOUNCE_LIMIT: usize = 4096;

/// What a message of the agent calls for, once it is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Nothing: the vCPU may run on.
    None,
    /// The agent is about to start: arm everything before the vCPU runs on.
    Ready,
    /// No more records will come: read the rings to their end before the vCPU runs on.
    Finished,
    /// The trial is over.
    End(TrialEnd),
}

/// The task that calls.
pub(super) struct Caller {
    /// Its address space.
    pub(super) space: AddressSpace,
    /// Its `task_struct`.
    pub(super) task: u64,
}

/// The state of one conversation.
#[derive(Debug, Clone)]
pub(crate) struct AgentSession {
    plan: GuestPlan,
    /// All that was announced and read so far.
    pub recording: Recording,
    /// The rings.
    pub rings: Vec<RingReader>,
    /// The memory that the agent shares with the host.
    pub shared: SharedArea,
    /// Pages of the lab client's log; empty where there is none.
    lab_pages: Vec<u64>,
    /// Buffers of instances of tracefs that are mapped.
    tracefs: Vec<TracefsBuffer>,
    /// Where unwinding in user mode writes, if it was set up.
    user_mode: Option<UserModeAnnounce>,
    /// How far the agent is.
    pub stage: Stage,
    /// The agent has called.
    called: bool,
    /// What the agent may say next.
    state: State,
    /// What it has announced that comes once.
    once: Once,
    /// Bytes of its messages behind the workload that no other limit bounds.
    told: usize,
}

impl AgentSession {
    /// A conversation that has not begun.
    pub fn new(plan: &GuestPlan, vcpus: u8) -> Self {
        Self {
            plan: plan.clone(),
            recording: Recording {
                vcpus: u32::from(vcpus),
                tracing: Some(plan.tracing.clone()),
                sysctls: plan.sysctls.clone(),
                tracefs: plan.tracefs.clone().map(TracefsLog::of),
                ..Recording::default()
            },
            rings: Vec::new(),
            shared: SharedArea::default(),
            lab_pages: Vec::new(),
            tracefs: Vec::new(),
            user_mode: None,
            stage: Stage::Booting,
            called: false,
            state: State::default(),
            once: Once::default(),
            told: 0,
        }
    }

    /// Whether the agent was answered before.
    pub(super) fn has_begun(&self) -> bool {
        self.called
    }

    /// Whether there is such a workload thread, and it may run.
    pub(super) fn has_thread(&self, thread: u32) -> bool {
        let may_run = matches!(self.state, State::Running | State::Finished);
        may_run && thread < self.plan.workload.threads
    }

    /// Reads the mailbox whose header page has this frame number, and writes the answer into it.
    pub(super) fn answer(
        &mut self,
        memory: &Memory,
        caller: &Caller,
        frame: u32,
    ) -> Result<Consequence, SessionError> {
        self.called = true;
        let at = u64::from(frame) * PAGE_SIZE as u64;
        let mut page = [0; PAGE_SIZE];
        memory.read(at, &mut page)?;
        let header = Header::parse(&page)?;
        let mut body = vec![0; header.len];
        for (chunk, &gpa) in body.chunks_mut(PAGE_SIZE).zip(&header.pages) {
            memory.read(gpa, chunk)?;
        }
        let message = mailbox::decode(&body)?;
        self.state = self.state.after(Word::from(&message))?;
        self.weigh(&message, body.len())?;
        let (reply, consequence) = match message {
            AgentMessage::Locate { start, pages } => {
                let found = locate(memory, &caller.space, start, pages)?;
                (HostReply::Located(found), Consequence::None)
            }
            AgentMessage::Task => (HostReply::Task(caller.task), Consequence::None),
            message => {
                in_ram(memory, &message)?;
                self.message(message)?
            }
        };
        let answer = mailbox::encode(&reply)?;
        let have = header.pages.len() * PAGE_SIZE;
        if answer.len() > have {
            return Err(MailboxError::TooLarge {
                need: answer.len(),
                have,
            }
            .into());
        }
        for (chunk, &gpa) in answer.chunks(PAGE_SIZE).zip(&header.pages) {
            memory.write(gpa, chunk)?;
        }
        let header = Header {
            len: answer.len(),
            ..header
        };
        memory.write(at, &header.to_bytes())?;
        Ok(consequence)
    }

    fn message(&mut self, message: AgentMessage) -> Result<(HostReply, Consequence), SessionError> {
        let (plan, recording, once) = (&self.plan, &mut self.recording, &mut self.once);
        let mut consequence = Consequence::None;
        match message {
            AgentMessage::Hello {
                abi_version,
                release,
                cpus,
            } => {
                if abi_version != ABI_VERSION {
                    return Err(SessionError::Version(abi_version));
                }
                announced::cpus(cpus, recording.vcpus)?;
                recording.release = release;
                self.stage = Stage::Preparing;
                let plan = Box::new(self.plan.clone());
                return Ok((HostReply::Plan(plan), consequence));
            }
            AgentMessage::Unsupported { reason } => {
                consequence = Consequence::End(TrialEnd::Unsupported { reason });
            }
            AgentMessage::Failed { what } => {
                consequence = Consequence::End(failed(self.stage, &what));
            }
            AgentMessage::Ring(ring) => {
                announced::ring(plan, recording, &ring)?;
                self.rings.push(RingReader::new(&ring)?);
                keep(&mut recording.rings, ring, "rings")?;
            }
            AgentMessage::Event(event) => {
                announced::event(plan, recording, &event)?;
                keep(&mut recording.events, event, "events")?;
            }
            AgentMessage::Thread(thread) => {
                announced::thread(plan, recording, &thread)?;
                keep(&mut recording.threads, thread, "threads")?;
            }
            AgentMessage::Lab { pages } if may_be_log(pages.len()) => {
                announced::once(&mut once.lab, plan.lab.is_some(), "a lab log")?;
                self.lab_pages = pages;
            }
            AgentMessage::Lab { .. } => return Err(SessionError::TooMany("pages of a lab log")),
            AgentMessage::TracefsFormat(format) => {
                let log = recording.tracefs.get_or_insert_default();
                let fits = log.add_format(format).then_some(());
                fits.ok_or(SessionError::TooMany("format files of tracefs"))?;
            }
            AgentMessage::TracefsBuffer(buffer) => {
                announced::tracefs_buffer(plan, recording.vcpus, &self.tracefs, &buffer)?;
                keep(&mut self.tracefs, buffer, "buffers of tracefs")?;
            }
            AgentMessage::UserMode(announce) if UserModeLog::may_be(&announce) => {
                let planned = plan.user_mode.is_some() || plan.bpf.is_some();
                announced::once(&mut once.user_mode, planned, "results of unwinding")?;
                self.user_mode = Some(announce);
            }
            AgentMessage::UserMode(_) => return Err(SessionError::TooMany("pages of results")),
            AgentMessage::Shared { pages } => {
                announced::once(&mut once.shared, true, "shared pages")?;
                announced::shared_pages(pages.len())?;
                let area = SharedArea::announced(pages);
                self.shared = area.ok_or(SessionError::TooMany("shared pages"))?;
            }
            AgentMessage::Symbols(symbols) if symbols.len() <= ANNOUNCE_LIMIT => {
                announced::once(&mut once.symbols, true, "symbols")?;
                recording.user_symbols = symbols;
            }
            AgentMessage::Symbols(_) => return Err(SessionError::TooMany("symbols")),
            AgentMessage::Program(program) if is_small(&program) => {
                announced::once(&mut once.program, true, "a program")?;
                announced::program(plan, &program)?;
                recording.program = program;
            }
            AgentMessage::Program(_) => return Err(SessionError::TooMany("known stacks")),
            AgentMessage::Ready => {
                announced::all(plan, recording, *once)?;
                announced::all_tracefs(plan, recording.vcpus, &self.tracefs)?;
                self.stage = Stage::Running;
                consequence = Consequence::Ready;
            }
            AgentMessage::Finished { iterations } => {
                announced::iterations(plan, iterations.len())?;
                consequence = Consequence::Finished;
            }
            AgentMessage::Observed(seen) => {
                announced::observation(&seen)?;
                keep(&mut recording.observations, seen, "observations")?;
            }
            AgentMessage::Surveyed(places) => {
                if recording.survey.len().saturating_add(places.len()) > MAX_PLACES {
                    return Err(SessionError::TooMany("surveyed places"));
                }
                recording.survey.extend(places);
            }
            AgentMessage::Tracefs(part) => {
                let log = recording.tracefs.get_or_insert_default();
                let fits = log.add(part).then_some(());
                fits.ok_or(SessionError::TooMany("bytes of tracefs"))?;
            }
            AgentMessage::PerfScript(text) => {
                let script = recording.perf_script.get_or_insert_default();
                if script.len().saturating_add(text.len()) > SCRIPT_LIMIT {
                    return Err(SessionError::TooMany("bytes of perf's output"));
                }
                script.push_str(&text);
            }
            AgentMessage::PerfData(piece) => {
                let data = recording.perf_data.get_or_insert_default();
                if data.len().saturating_add(piece.len()) > PERF_DATA_LIMIT {
                    return Err(SessionError::TooMany("bytes of perf's recording"));
                }
                data.extend(piece);
            }
            AgentMessage::PerfToolFailed { what } => {
                consequence = Consequence::End(failed(self.stage, &what));
            }
            AgentMessage::KernelLog(text) => {
                let room = LOG_LIMIT.saturating_sub(recording.kernel_log.len());
                recording.kernel_log.extend(text.chars().take(room));
            }
            // Answered from the vCPU's state, in `answer`.
            AgentMessage::Locate { .. } | AgentMessage::Task => {}
            AgentMessage::Bye => consequence = Consequence::End(TrialEnd::Completed),
        }
        Ok((HostReply::Ok, consequence))
    }

    /// Looks up a user symbol, once the agent has announced them.
    pub fn user_symbol(&self, name: &str) -> Option<&UserSymbol> {
        self.recording.user_symbols.iter().find(|s| s.name == name)
    }

    /// Closes the conversation: the recording, with everything that the rings held.
    pub fn into_recording(self) -> Recording {
        let mut recording = self.recording;
        recording.ring_bytes = self.rings.into_iter().map(RingReader::finish).collect();
        recording
    }
}

/// The end of a trial whose agent could not go on. Once everything was set up, what fails is what the kernel under test does.
fn failed(stage: Stage, what: &str) -> TrialEnd {
    let reason = format!("the guest's agent: {what}");
    match stage {
        Stage::Running | Stage::Stopping => TrialEnd::Misbehaved { what: reason },
        Stage::Booting | Stage::Preparing => TrialEnd::BootError {
            reason,
            places: Vec::new(),
        },
    }
}

/// Whether all pages are RAM that an agent announces: they are read for as long as it runs.
fn in_ram(memory: &Memory, message: &AgentMessage) -> Result<(), AccessError> {
    let none: &[u64] = &[];
    let (pages, others) = match message {
        AgentMessage::Ring(ring) => (ring.data_pages.as_slice(), vec![ring.control_page]),
        AgentMessage::Lab { pages } | AgentMessage::Shared { pages } => (pages.as_slice(), vec![]),
        AgentMessage::TracefsBuffer(it) => (it.pages.as_slice(), vec![]),
        AgentMessage::UserMode(it) => {
            let (ring, results) = (it.ring.as_slice(), it.results.clone());
            let all = { results.into_iter() }.chain([it.producer, it.counters]);
            (ring, all.collect())
        }
        _ => (none, vec![]),
    };
    let mut all = pages.iter().chain(&others);
    all.try_for_each(|page| memory.read(*page, &mut [0; PAGE_SIZE]))
}

/// Guest-physical addresses of the pages from `start` on.
fn locate(
    memory: &Memory,
    space: &AddressSpace,
    start: u64,
    pages: u32,
) -> Result<Vec<u64>, SessionError> {
    if pages > MAX_LOCATE {
        return Err(SessionError::TooMany("pages"));
    }
    (0..u64::from(pages))
        .map(|page| {
            let address = start.wrapping_add(page * PAGE_SIZE as u64);
            space
                .translate(memory, address)
                .ok_or(SessionError::Unmapped(address))
        })
        .collect()
}

/// Whether it has no more of anything than a session may have.
fn is_small(program: &Program) -> bool {
    let lists = [program.stacks.len(), program.covered.len()];
    let callers = program.stacks.iter().map(|it| it.callers.len());
    lists
        .into_iter()
        .chain(callers)
        .all(|it| it <= ANNOUNCE_LIMIT)
}

fn keep<T>(list: &mut Vec<T>, item: T, what: &'static str) -> Result<(), SessionError> {
    if list.len() >= ANNOUNCE_LIMIT {
        return Err(SessionError::TooMany(what));
    }
    list.push(item);
    Ok(())
}
