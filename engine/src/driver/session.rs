//! The conversation with the guest's agent: keeps what it announces, and answers what it asks.

use unwindlab_abi::ABI_VERSION;
use unwindlab_abi::lab::HEAD_OFFSET;
use unwindlab_abi::mailbox::{self, Header, MailboxError, PAGE_SIZE};
use unwindlab_abi::message::{
    AgentMessage, HostReply, MAX_LOCATE, Program, RingAnnounce, UserSymbol,
};
use unwindlab_abi::plan::GuestPlan;
use unwindlab_abi::survey::MAX_PLACES;
use unwindlab_vmm::{AccessError, AddressSpace, Memory};

use super::guest_memory::Ram;
use super::shared::SharedArea;
use crate::plan::{EventPlan, Stage};
use unwindlab_oracle::trace::framing::Records;
use unwindlab_oracle::trace::lab::LabLog;
use unwindlab_oracle::trace::lab::reader::{self, may_be_log};
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_oracle::trace::ring::{DATA_HEAD, RingError, RingReader};

/// Longest kernel log kept, in bytes; the guest may write any amount.
const LOG_LIMIT: usize = 4 << 20;
/// Longest output of the distribution's perf, in bytes; the agent sends less.
const SCRIPT_LIMIT: usize = 8 << 20;
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

/// A guest that does not keep to the protocol. Its agent is ours, so this is the harness's fault
/// or the sign of a guest whose memory is broken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The mailbox is no mailbox.
    #[error("the agent's mailbox: {0}")]
    Mailbox(#[from] MailboxError),
    /// An announced address is not guest RAM.
    #[error("the agent announced an address that is not its RAM: {0}")]
    Memory(#[from] AccessError),
    /// The agent was built from another tree.
    #[error("agent speaks ABI version {0}, not {ABI_VERSION}")]
    Version(u32),
    /// What the agent announced as a ring is none.
    #[error("the agent announced a ring that cannot be read: {0}")]
    Ring(#[from] RingError),
    /// The agent asks for a page that its page tables do not have.
    #[error("nothing is mapped at the agent's address {0:#x}")]
    Unmapped(u64),
    /// More of something than any plan can need.
    #[error("the agent announced too many {0}")]
    TooMany(&'static str),
}

/// How far the output of a guest was looked at.
#[derive(Debug, Default)]
pub(crate) struct OutputCursor {
    /// By ring, in bytes.
    rings: Vec<usize>,
    /// In slots of the lab client's log.
    lab: u64,
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
    /// How far the agent is.
    pub stage: Stage,
    /// The agent was answered at least once.
    begun: bool,
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
                ..Recording::default()
            },
            rings: Vec::new(),
            shared: SharedArea::default(),
            lab_pages: Vec::new(),
            stage: Stage::Booting,
            begun: false,
        }
    }

    /// Whether the agent was answered before.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Reads the mailbox whose header page has this frame number, and writes the answer into it.
    pub(super) fn answer(
        &mut self,
        memory: &Memory,
        caller: &Caller,
        frame: u32,
    ) -> Result<Consequence, SessionError> {
        self.begun = true;
        let at = u64::from(frame) * PAGE_SIZE as u64;
        let mut page = [0; PAGE_SIZE];
        memory.read(at, &mut page)?;
        let header = Header::parse(&page)?;
        let mut body = vec![0; header.len];
        for (chunk, &gpa) in body.chunks_mut(PAGE_SIZE).zip(&header.pages) {
            memory.read(gpa, chunk)?;
        }
        let message = mailbox::decode(&body)?;
        let (reply, consequence) = match message {
            AgentMessage::Locate { start, pages } => {
                let found = locate(memory, &caller.space, start, pages)?;
                (HostReply::Located(found), Consequence::None)
            }
            AgentMessage::Task => (HostReply::Task(caller.task), Consequence::None),
            message => self.message(message)?,
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
        let recording = &mut self.recording;
        let mut consequence = Consequence::None;
        match message {
            AgentMessage::Hello {
                abi_version,
                release,
                ..
            } => {
                if abi_version != ABI_VERSION {
                    return Err(SessionError::Version(abi_version));
                }
                recording.release = release;
                self.stage = Stage::Preparing;
                let plan = Box::new(self.plan.clone());
                return Ok((HostReply::Plan(plan), consequence));
            }
            AgentMessage::Unsupported { reason } => {
                consequence = Consequence::End(TrialEnd::Unsupported { reason });
            }
            AgentMessage::Failed { what } => {
                let reason = format!("the guest's agent: {what}");
                consequence = Consequence::End(if self.stage == Stage::Running {
                    TrialEnd::Infra { reason }
                } else {
                    TrialEnd::BootError {
                        reason,
                        places: Vec::new(),
                    }
                });
            }
            AgentMessage::Ring(ring) => {
                self.rings.push(RingReader::new(&ring)?);
                keep(&mut recording.rings, ring, "rings")?;
            }
            AgentMessage::Event(event) => keep(&mut recording.events, event, "events")?,
            AgentMessage::Thread(thread) => keep(&mut recording.threads, thread, "threads")?,
            AgentMessage::Lab { pages } if may_be_log(pages.len()) => self.lab_pages = pages,
            AgentMessage::Lab { .. } => return Err(SessionError::TooMany("pages of a lab log")),
            AgentMessage::Shared { pages } => {
                let area = SharedArea::announced(pages);
                self.shared = area.ok_or(SessionError::TooMany("shared pages"))?;
            }
            AgentMessage::Symbols(symbols) if symbols.len() <= ANNOUNCE_LIMIT => {
                recording.user_symbols = symbols;
            }
            AgentMessage::Symbols(_) => return Err(SessionError::TooMany("symbols")),
            AgentMessage::Program(program) if is_small(&program) => recording.program = program,
            AgentMessage::Program(_) => return Err(SessionError::TooMany("known stacks")),
            AgentMessage::Ready => {
                self.stage = Stage::Running;
                consequence = Consequence::Ready;
            }
            AgentMessage::Finished { .. } => consequence = Consequence::Finished,
            AgentMessage::Observed(seen) => {
                keep(&mut recording.observations, seen, "observations")?;
            }
            AgentMessage::Surveyed(places) => {
                if recording.survey.len().saturating_add(places.len()) > MAX_PLACES {
                    return Err(SessionError::TooMany("surveyed places"));
                }
                recording.survey.extend(places);
            }
            AgentMessage::PerfScript(text) => {
                let script = recording.perf_script.get_or_insert_default();
                if script.len().saturating_add(text.len()) > SCRIPT_LIMIT {
                    return Err(SessionError::TooMany("bytes of perf's output"));
                }
                script.push_str(&text);
            }
            AgentMessage::PerfToolFailed { what } => {
                consequence = Consequence::End(TrialEnd::Infra { reason: what });
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

    /// Reads what is new in every ring. A ring that stops making sense marks itself as corrupt;
    /// the others are read on.
    pub fn drain(&mut self, memory: &Memory) {
        for ring in &mut self.rings {
            if let Err(error) = ring.drain(&Ram(memory)) {
                tracing::debug!(%error, "ring");
            }
        }
    }

    /// The heads of all rings, in streams that count up.
    pub fn forwards(&self, heads: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let rings = self.recording.rings.iter();
        let heads = rings.zip(heads);
        heads
            .map(|(ring, head)| match ring.backward {
                true => head.wrapping_neg(),
                false => head,
            })
            .collect()
    }

    /// What is new behind the cursor in the rings as far as they were drained, and in the lab
    /// client's log; each with its CPU.
    pub fn seen(&self, memory: &Memory, cursor: &mut OutputCursor) -> Vec<(EventPlan, u8)> {
        cursor.rings.resize(self.rings.len(), 0);
        let mut seen = Vec::new();
        let cpus = self.recording.rings.iter().map(|ring| ring.cpu);
        for ((ring, from), cpu) in self.rings.iter().zip(&mut cursor.rings).zip(cpus) {
            let cpu = u8::try_from(cpu).unwrap_or(0);
            let mut records = Records::new(ring.bytes().get(*from..).unwrap_or_default());
            seen.extend(
                { &mut records }
                    .map_while(Result::ok)
                    .map(|record| (EventPlan::Record(record.record_type), cpu)),
            );
            *from += records.offset();
        }
        while let Some((kind, cpu)) = reader::slot(&Ram(memory), &self.lab_pages, cursor.lab) {
            cursor.lab += 1;
            seen.push((EventPlan::Lab(kind), cpu));
        }
        seen
    }

    /// Reads the lab client's log into the recording. The end of the trial is early enough: the
    /// log is never written over.
    pub fn read_lab(&mut self, memory: &Memory) {
        self.recording.lab = self.lab_from(memory, 0);
    }

    /// The lab client's log from this slot on; `None` where the kernel has no lab client.
    pub fn lab_from(&self, memory: &Memory, first: u64) -> Option<LabLog> {
        let announced = !self.lab_pages.is_empty();
        announced.then(|| LabLog::read_from(&Ram(memory), &self.lab_pages, first))
    }

    /// Pages that the kernel fills for readers: the data of all rings, and the slots of the lab
    /// client's log.
    pub fn output_pages(&self) -> impl Iterator<Item = u64> {
        let rings = self.recording.rings.iter().flat_map(|it| &it.data_pages);
        rings.chain(self.lab_pages.iter().skip(1)).copied()
    }

    /// Guest-physical addresses of `data_head` of every ring, and of the head of the lab client's
    /// log, if there is one.
    pub fn head_words(&self) -> (Vec<u64>, Option<u64>) {
        let rings = self.recording.rings.iter();
        let log = self.lab_pages.first();
        (
            rings.map(|ring| ring.control_page + DATA_HEAD).collect(),
            log.map(|control| control + HEAD_OFFSET as u64),
        )
    }

    /// `data_head` of every ring.
    pub fn heads(&self, memory: &Memory) -> Vec<u64> {
        let head = |ring: &RingAnnounce| memory.load_u64(ring.control_page + DATA_HEAD);
        let rings = self.recording.rings.iter();
        rings.map(|ring| head(ring).unwrap_or(0)).collect()
    }

    /// Records in every ring so far.
    pub fn ring_records(&self) -> Vec<usize> {
        let records = |ring: &RingReader| Records::new(ring.bytes()).map_while(Result::ok).count();
        self.rings.iter().map(records).collect()
    }

    /// The progress counters of all workload threads as they stand in guest memory.
    pub fn progress(&self, memory: &Memory) -> Vec<u64> {
        let threads = self.recording.threads.iter();
        threads
            .map(|it| self.shared.progress(memory, it.thread).unwrap_or(0))
            .collect()
    }

    /// Closes the conversation: the recording, with everything that the rings held.
    pub fn into_recording(self) -> Recording {
        let mut recording = self.recording;
        recording.ring_bytes = self.rings.into_iter().map(RingReader::finish).collect();
        recording
    }
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
