//! What the host is told before the workload runs.

use unwindlab_abi::message::RingAnnounce;
use unwindlab_abi::user_mode::UnwinderKind;
use unwindlab_abi::{AgentMessage, HostReply, TracefsBuffer, UserModeAnnounce};

use super::{SessionError, expect_ok, wrong_answer};
use crate::bpf::BpfClient;
use crate::lab::Lab;
use crate::mailbox::Link;
use crate::perf::PerfSession;
use crate::tracefs::Tracefs;
use crate::user_mode::{self, UserMode};
use crate::workload::Workload;

/// The host has located no page of memory that has some.
const NO_PAGES: SessionError = SessionError::Answer {
    question: "Locate",
    answer: "no pages",
};

/// Announces each ring before the events that write to it.
pub(super) fn tracing(link: &mut Link, tracing: &PerfSession) -> Result<(), SessionError> {
    for (number, ring) in (0..).zip(tracing.rings()) {
        let pages = locate(link, ring.mapping.address(), ring.mapping.pages())?;
        let mut pages = pages.into_iter();
        let announce = RingAnnounce {
            ring: number,
            cpu: ring.cpu,
            control_page: pages.next().ok_or(NO_PAGES)?,
            data_pages: pages.collect(),
            backward: ring.backward,
        };
        expect_ok(link, "Ring", &AgentMessage::Ring(announce))?;
    }
    for announce in tracing.announces() {
        expect_ok(link, "Event", &AgentMessage::Event(announce.clone()))?;
    }
    Ok(())
}

pub(super) fn lab(link: &mut Link, lab: &Lab) -> Result<(), SessionError> {
    let pages = locate(link, lab.log_address(), lab.log_pages())?;
    expect_ok(link, "Lab", &AgentMessage::Lab { pages })
}

pub(super) fn tracefs(link: &mut Link, tracefs: &Tracefs) -> Result<(), SessionError> {
    for format in tracefs.formats()? {
        expect_ok(link, "TracefsFormat", &AgentMessage::TracefsFormat(format))?;
    }
    for buffer in tracefs.mapped() {
        let (start, count) = buffer.sub_buffers();
        let announce = TracefsBuffer {
            instance: buffer.instance,
            cpu: buffer.cpu,
            pages: locate(link, start, count)?,
        };
        expect_ok(
            link,
            "TracefsBuffer",
            &AgentMessage::TracefsBuffer(announce),
        )?;
    }
    Ok(())
}

pub(super) fn user_mode(link: &mut Link, user_mode: &UserMode) -> Result<(), SessionError> {
    let [ring, counters] = user_mode.mappings();
    let requests = Requests::locate(link, ring, counters)?;
    let announce = UserModeAnnounce {
        producer: requests.producer,
        ring: requests.ring,
        counters: requests.counters,
        results: user_mode.results()?,
        handler: user_mode::handler(),
        unwinder: user_mode.unwinder(),
    };
    expect_ok(link, "UserMode", &AgentMessage::UserMode(announce))
}

/// Its results are in a map, and no code of the guest's user mode answers.
pub(super) fn bpf(link: &mut Link, bpf: &BpfClient) -> Result<(), SessionError> {
    let [ring, counters, (results, pages)] = bpf.mappings();
    let requests = Requests::locate(link, ring, counters)?;
    let announce = UserModeAnnounce {
        producer: requests.producer,
        ring: requests.ring,
        counters: requests.counters,
        results: locate(link, results, pages)?,
        // Nobody is sent a signal.
        handler: 0,
        unwinder: UnwinderKind::default(),
    };
    expect_ok(link, "UserMode", &AgentMessage::UserMode(announce))
}

/// Where a BPF program's requests are: the ring buffer's page of the producer, its data, and the counters' page.
struct Requests {
    producer: u64,
    ring: Vec<u64>,
    counters: u64,
}

impl Requests {
    /// Of mappings, each with its address and number of pages.
    fn locate(
        link: &mut Link,
        ring: (u64, u32),
        counters: (u64, u32),
    ) -> Result<Self, SessionError> {
        let mut ring = locate(link, ring.0, ring.1)?.into_iter();
        let counters = locate(link, counters.0, counters.1)?;
        Ok(Self {
            producer: ring.next().ok_or(NO_PAGES)?,
            ring: ring.collect(),
            counters: counters.first().copied().ok_or(NO_PAGES)?,
        })
    }
}

fn locate(link: &mut Link, start: u64, pages: u32) -> Result<Vec<u64>, SessionError> {
    match link.ask(&AgentMessage::Locate { start, pages })? {
        HostReply::Located(pages) => Ok(pages),
        other => Err(wrong_answer("Locate", other)),
    }
}

pub(super) fn workload(link: &mut Link, workload: &Workload) -> Result<(), SessionError> {
    let pages = workload.shared().physical()?;
    expect_ok(link, "Shared", &AgentMessage::Shared { pages })?;
    for announce in workload.announces() {
        expect_ok(link, "Thread", &AgentMessage::Thread(announce.clone()))?;
    }
    let symbols = AgentMessage::Symbols(workload.symbols());
    expect_ok(link, "Symbols", &symbols)?;
    if let Some(program) = workload.program() {
        expect_ok(link, "Program", &AgentMessage::Program(program.clone()))?;
    }
    Ok(())
}
