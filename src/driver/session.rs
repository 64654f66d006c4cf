//! The conversation with the guest's agent: what it announces is kept, what it asks is answered.

use unwindlab_abi::command::Words;
use unwindlab_abi::mailbox::{self, Header, MailboxError, PAGE_SIZE};
use unwindlab_abi::message::{AgentMessage, HostReply, MAX_LOCATE, RingAnnounce, UserSymbol};
use unwindlab_abi::plan::GuestPlan;
use unwindlab_abi::{ABI_VERSION, shared};

use unwindlab_vmm::{AccessError, AddressSpace, Memory};

use super::guest_memory::Ram;
use crate::plan::EventPlan;
use crate::plan::Stage;
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

/// What a message means for the trial.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Answer sent; let the vCPU run on.
    Go,
    /// The agent is about to start: arm everything, then let it run on.
    Ready,
    /// No more records will come: read the rings to their end.
    Finished,
    /// The trial is over.
    End(TrialEnd),
}

/// A guest that does not keep to the protocol. Its agent is ours, so this is the harness's fault
/// or the sign of a guest whose memory is broken; it ends the trial.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The mailbox is no mailbox.
    #[error("the agent's mailbox: {0}")]
    Mailbox(#[from] MailboxError),
    /// An announced address is not guest RAM.
    #[error("the agent announced an address that is not its RAM: {0}")]
    Memory(#[from] AccessError),
    /// The agent was built from another tree.
    #[error("agent speaks ABI version {0}, not {ABI_VERSION}")]
    Version(u32),
    /// A ring that cannot be one.
    #[error("the agent announced a ring that cannot be read: {0}")]
    Ring(#[from] RingError),
    /// A page it asks for is not in its page tables.
    #[error("nothing is mapped at the agent's address {0:#x}")]
    Unmapped(u64),
    /// More of something than any plan can need.
    #[error("the agent announced too many {0}")]
    TooMany(&'static str),
}

/// The state of one conversation.
#[derive(Debug, Clone)]
pub struct Session {
    plan: GuestPlan,
    /// All that was announced and read so far.
    pub recording: Recording,
    /// The rings.
    pub rings: Vec<RingReader>,
    /// Pages of the shared area; empty before they are announced.
    shared_pages: Vec<u64>,
    /// Pages of the lab client's log; empty where there is none.
    lab_pages: Vec<u64>,
    /// How far the agent is.
    pub stage: Stage,
    /// The agent said that no more records will come.
    pub finished: bool,
}

impl Session {
    /// A conversation that has not begun.
    #[must_use]
    pub fn new(plan: &GuestPlan, vcpus: u8) -> Self {
        Self {
            plan: plan.clone(),
            recording: Recording {
                vcpus: u32::from(vcpus),
                tracing: Some(plan.tracing.clone()),
                ..Recording::default()
            },
            rings: Vec::new(),
            shared_pages: Vec::new(),
            lab_pages: Vec::new(),
            stage: Stage::Booting,
            finished: false,
        }
    }

    /// Handles the mailbox whose header page has this frame number; `space` is that of the vCPU
    /// that rang; the answer is in place when it
    /// returns.
    ///
    /// # Errors
    /// [`SessionError`] when the guest does not keep to the protocol.
    pub fn mailbox(
        &mut self,
        memory: &Memory,
        space: &AddressSpace,
        frame: u32,
    ) -> Result<Turn, SessionError> {
        let at = u64::from(frame) * PAGE_SIZE as u64;
        let mut page = [0; PAGE_SIZE];
        memory.read(at, &mut page)?;
        let header = Header::parse(&page)?;
        let mut body = vec![0; header.len];
        for (chunk, &gpa) in body.chunks_mut(PAGE_SIZE).zip(&header.pages) {
            memory.read(gpa, chunk)?;
        }
        let message = mailbox::decode(&body)?;
        let (reply, turn) = match message {
            AgentMessage::Locate { start, pages } => {
                let found = locate(memory, space, start, pages)?;
                (HostReply::Located(found), Turn::Go)
            }
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
        Ok(turn)
    }

    fn message(&mut self, message: AgentMessage) -> Result<(HostReply, Turn), SessionError> {
        let recording = &mut self.recording;
        let mut turn = Turn::Go;
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
                return Ok((HostReply::Plan(Box::new(self.plan.clone())), turn));
            }
            AgentMessage::Unsupported { reason } => {
                turn = Turn::End(TrialEnd::Unsupported { reason });
            }
            AgentMessage::Failed { what } => {
                let reason = format!("the guest's agent: {what}");
                turn = Turn::End(if self.stage == Stage::Running {
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
            AgentMessage::Shared { pages } if pages.len() <= shared::PAGES => {
                self.shared_pages = pages;
            }
            AgentMessage::Shared { .. } => return Err(SessionError::TooMany("shared pages")),
            AgentMessage::Symbols(symbols) if symbols.len() <= ANNOUNCE_LIMIT => {
                recording.user_symbols = symbols;
            }
            AgentMessage::Symbols(_) => return Err(SessionError::TooMany("symbols")),
            AgentMessage::Ready => {
                self.stage = Stage::Running;
                turn = Turn::Ready;
            }
            AgentMessage::Finished { .. } => {
                self.finished = true;
                turn = Turn::Finished;
            }
            AgentMessage::Observed(seen) => {
                keep(&mut recording.observations, seen, "observations")?;
            }
            AgentMessage::PerfScript(text) => {
                let script = recording.perf_script.get_or_insert_default();
                if script.len().saturating_add(text.len()) > SCRIPT_LIMIT {
                    return Err(SessionError::TooMany("bytes of perf's output"));
                }
                script.push_str(&text);
            }
            AgentMessage::PerfToolFailed { what } => {
                turn = Turn::End(TrialEnd::Infra { reason: what });
            }
            AgentMessage::KernelLog(text) => {
                let room = LOG_LIMIT.saturating_sub(recording.kernel_log.len());
                recording.kernel_log.extend(text.chars().take(room));
            }
            // Answered from guest memory, in `mailbox`.
            AgentMessage::Locate { .. } => {}
            AgentMessage::Bye => turn = Turn::End(TrialEnd::Completed),
        }
        Ok((HostReply::Ok, turn))
    }

    /// Looks up a user symbol; only after the agent announced them.
    #[must_use]
    pub fn user_symbol(&self, name: &str) -> Option<&UserSymbol> {
        self.recording.user_symbols.iter().find(|s| s.name == name)
    }

    /// Reads what is new in every ring. A ring that stops making sense marks itself; the others
    /// go on.
    pub fn drain(&mut self, memory: &Memory) {
        for ring in &mut self.rings {
            if let Err(error) = ring.drain(&Ram(memory)) {
                tracing::debug!(%error, "ring");
            }
        }
    }

    /// What is new in the rings and in the lab client's log since they were last looked at, with
    /// the CPU: `rings` and `lab` say how far that was.
    pub fn seen(
        &self,
        memory: &Memory,
        rings: &mut Vec<usize>,
        lab: &mut u64,
    ) -> Vec<(EventPlan, u8)> {
        rings.resize(self.rings.len(), 0);
        let mut seen = Vec::new();
        let cpus = self.recording.rings.iter().map(|ring| ring.cpu);
        for ((ring, from), cpu) in self.rings.iter().zip(rings).zip(cpus) {
            let cpu = u8::try_from(cpu).unwrap_or(0);
            let mut records = Records::new(ring.bytes().get(*from..).unwrap_or_default());
            seen.extend(
                { &mut records }
                    .map_while(Result::ok)
                    .map(|record| (EventPlan::Record(record.record_type), cpu)),
            );
            *from += records.offset();
        }
        while let Some((kind, cpu)) = reader::slot(&Ram(memory), &self.lab_pages, *lab) {
            *lab += 1;
            seen.push((EventPlan::Lab(kind), cpu));
        }
        seen
    }

    /// Reads the lab client's log, which is never read before the trial's end: it is not written
    /// over.
    pub fn read_lab(&mut self, memory: &Memory) {
        self.recording.lab = self.lab_from(memory, 0);
    }

    /// The lab client's log from this slot on, where there is one.
    #[must_use]
    pub fn lab_from(&self, memory: &Memory, first: u64) -> Option<LabLog> {
        let announced = !self.lab_pages.is_empty();
        announced.then(|| LabLog::read_from(&Ram(memory), &self.lab_pages, first))
    }

    /// Pages that the kernel fills for readers: the data of all rings, the slots of the lab client's
    /// log.
    pub fn output_pages(&self) -> impl Iterator<Item = u64> {
        let rings = self.recording.rings.iter().flat_map(|it| &it.data_pages);
        rings.chain(self.lab_pages.iter().skip(1)).copied()
    }

    /// `data_head` of every ring.
    #[must_use]
    pub fn heads(&self, memory: &Memory) -> Vec<u64> {
        let head = |ring: &RingAnnounce| memory.load_u64(ring.control_page + DATA_HEAD);
        let rings = self.recording.rings.iter();
        rings.map(|ring| head(ring).unwrap_or(0)).collect()
    }

    /// Tells every workload thread to end at its next iteration.
    ///
    /// # Errors
    /// When the announced page is not RAM.
    pub fn stop_workload(&self, memory: &Memory) -> Result<(), AccessError> {
        match self.shared_pages.first() {
            Some(&page) => memory.write(page + shared::STOP_OFFSET as u64, &1_u32.to_le_bytes()),
            None => Ok(()),
        }
    }

    /// Records in every ring so far.
    #[must_use]
    pub fn ring_records(&self) -> Vec<usize> {
        let records = |ring: &RingReader| Records::new(ring.bytes()).map_while(Result::ok).count();
        self.rings.iter().map(records).collect()
    }

    /// Writes a command for the agent's helper; its number last.
    ///
    /// # Errors
    /// When the announced page is not RAM.
    pub fn give_command(
        &self,
        memory: &Memory,
        number: u64,
        words: Words,
    ) -> Result<(), AccessError> {
        let at = self
            .shared_word(shared::COMMAND_OFFSET)
            .unwrap_or(u64::MAX - 64);
        let all = [words.what, words.thread, words.argument];
        for (at, word) in (at + 8..).step_by(8).zip(all) {
            memory.write(at, &word.to_le_bytes())?;
        }
        memory.store_u64(at, number)
    }

    /// The errno of command `number`, 0 where it did what it says; none where the helper is not
    /// done with it.
    #[must_use]
    pub fn command_errno(&self, memory: &Memory, number: u64) -> Option<u64> {
        let at = self.shared_word(shared::ANSWER_OFFSET)?;
        let done = memory.load_u64(at).ok()? == number;
        done.then(|| memory.load_u64(at + 8).ok())?
    }

    /// Where a word of the shared area is in guest-physical memory.
    fn shared_word(&self, offset: usize) -> Option<u64> {
        let page = self.shared_pages.get(offset / PAGE_SIZE)?;
        Some(page + (offset % PAGE_SIZE) as u64)
    }

    /// Every workload thread's progress counter, by thread, as it stands in guest memory.
    #[must_use]
    pub fn progress(&self, memory: &Memory) -> Vec<u64> {
        let counter = |thread: u32| -> Option<u64> {
            let offset = shared::progress_offset(thread);
            let page = self.shared_pages.get(offset / PAGE_SIZE)?;
            let mut word = [0; 8];
            memory
                .read(page + (offset % PAGE_SIZE) as u64, &mut word)
                .ok()?;
            Some(u64::from_le_bytes(word))
        };
        self.recording
            .threads
            .iter()
            .map(|t| counter(t.thread).unwrap_or(0))
            .collect()
    }

    /// Closes the conversation: the recording with everything the rings held.
    #[must_use]
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

fn keep<T>(list: &mut Vec<T>, item: T, what: &'static str) -> Result<(), SessionError> {
    if list.len() >= ANNOUNCE_LIMIT {
        return Err(SessionError::TooMany(what));
    }
    list.push(item);
    Ok(())
}
