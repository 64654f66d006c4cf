//! A conversation with an agent that is not in a machine: what a guest says comes from a list.

use std::borrow::Cow;

use unwindlab_abi::mailbox::{self, Header, PAGE_SIZE};
use unwindlab_abi::message::AgentMessage;
use unwindlab_abi::plan::GuestPlan;
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_vmm::{AddressSpace, Memory};

use super::session::{AgentSession, Caller, Consequence, OutputCursor};

/// The page frame of the mailbox's header; its data pages follow.
const FRAME: u32 = 0x80;
const MAILBOX: u64 = FRAME as u64 * PAGE_SIZE as u64;

/// What a guest does next.
#[derive(Debug, Clone)]
pub enum Said<'a> {
    /// It puts these bytes into its mailbox, and calls.
    Message(Cow<'a, [u8]>),
    /// It has these bytes as the header of its mailbox, and calls.
    Mailbox(&'a [u8]),
    /// It writes these bytes over its memory.
    Scribble(u32, &'a [u8]),
}

/// What came of it.
#[derive(Debug)]
pub struct Heard {
    /// The messages that were accepted.
    pub messages: Vec<AgentMessage>,
    /// The end, where the conversation came to one.
    pub end: Option<TrialEnd>,
    /// What was recorded.
    pub recording: Recording,
}

/// Answers the guest up to its last word, or up to its first fault, and reads what it has announced, as trials do.
#[must_use]
pub fn hold(memory: &Memory, plan: &GuestPlan, vcpus: u8, said: &[Said<'_>]) -> Heard {
    let mut session = AgentSession::new(plan, vcpus);
    let caller = Caller {
        space: AddressSpace::of(&Default::default()),
        task: 0,
    };
    let mut cursor = OutputCursor::default();
    let (mut messages, mut end) = (Vec::new(), None);
    for said in said {
        let header = match said {
            Said::Scribble(at, bytes) => {
                let _ = memory.write(u64::from(*at), bytes);
                session.drain(memory);
                if let Err(error) = session.seen(memory, &mut cursor) {
                    end = Some(error.into());
                    break;
                }
                continue;
            }
            Said::Message(body) => post(memory, body),
            Said::Mailbox(header) => (*header).to_vec(),
        };
        let _ = memory.write(MAILBOX, &header);
        let message = in_mailbox(memory);
        match session.answer(memory, &caller, FRAME) {
            Ok(consequence) => {
                messages.extend(message);
                session.drain(memory);
                if let Consequence::End(how) = consequence {
                    end = Some(how);
                    break;
                }
            }
            Err(error) => {
                end = Some(error.into());
                break;
            }
        }
    }
    let _ = (
        session.progress(memory),
        session.heads(memory),
        session.head_words(),
    );
    let _ = session.ring_records();
    session.read_lab(memory);
    session.read_user_mode(memory);
    session.read_tracefs(memory);
    Heard {
        messages,
        end,
        recording: session.into_recording(),
    }
}

/// Writes a message into the mailbox's pages, and returns their header.
fn post(memory: &Memory, body: &[u8]) -> Vec<u8> {
    /// Room for the answer.
    const ROOM: usize = 8;
    let first = MAILBOX + PAGE_SIZE as u64;
    let pages = body.len().div_ceil(PAGE_SIZE).max(ROOM);
    let _ = memory.write(first, body);
    let pages = (first..).step_by(PAGE_SIZE).take(pages);
    let pages = pages.collect();
    Header {
        len: body.len(),
        pages,
    }
    .to_bytes()
}

/// The message in the mailbox, if one is there.
fn in_mailbox(memory: &Memory) -> Option<AgentMessage> {
    let mut page = [0; PAGE_SIZE];
    memory.read(MAILBOX, &mut page).ok()?;
    let header = Header::parse(&page).ok()?;
    let mut body = vec![0; header.len];
    for (chunk, &at) in body.chunks_mut(PAGE_SIZE).zip(&header.pages) {
        memory.read(at, chunk).ok()?;
    }
    mailbox::decode(&body).ok()
}
