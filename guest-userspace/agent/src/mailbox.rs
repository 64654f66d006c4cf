//! The agent's end of the mailbox: one request, one reply.

use unwindlab_abi::mailbox::{self, Header, MailboxError, PAGE_SIZE};
use unwindlab_abi::{AgentMessage, HostReply};

use crate::pages::Pages;
use crate::physical::{self, PhysicalError};
use crate::ports;

/// Data pages: room for the announcement of the largest ring
/// ([`unwindlab_abi::message::MAX_LOCATE`]), and for a plan with a static C program.
const DATA_PAGES: usize = mailbox::MAX_PAGES;
/// Longest message in bytes.
pub const CAPACITY: usize = DATA_PAGES * PAGE_SIZE;

/// Why the host cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No memory for the mailbox.
    #[error("cannot map the mailbox: {0}")]
    Map(#[from] rustix::io::Errno),
    /// The ports are not available.
    #[error("cannot use the host's ports (ioperm): {0}")]
    Ports(#[source] std::io::Error),
    /// The mailbox's guest-physical addresses are unknown.
    #[error("cannot tell the host where the mailbox is: {0}")]
    Physical(#[from] PhysicalError),
    /// The header page lies above 16 TiB.
    #[error("the mailbox's page frame number {0:#x} does not fit 32 bits")]
    TooHigh(u64),
    /// The message does not fit, or the host's answer is not valid.
    #[error(transparent)]
    Message(#[from] MailboxError),
    /// The host did not write to the mailbox: there is no host, or not this program's.
    #[error("no host answers on the port")]
    NoAnswer,
}

/// The connection to the host.
#[derive(Debug)]
pub struct Link {
    memory: MailboxPages,
    header_frame: u32,
}

impl Link {
    /// Makes a mailbox and opens the ports. Needs `/proc`.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn new() -> Result<Self, LinkError> {
        ports::allow().map_err(LinkError::Ports)?;
        let area = Pages::staying(1 + DATA_PAGES)?;
        let mut pages = physical::pages(area.address(), 1 + DATA_PAGES)?;
        let frame = pages.remove(0) / PAGE_SIZE as u64;
        Ok(Self {
            memory: MailboxPages { area, pages },
            header_frame: u32::try_from(frame).map_err(|_| LinkError::TooHigh(frame))?,
        })
    }

    /// Sends a message and returns the host's reply.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn ask(&mut self, message: &AgentMessage) -> Result<HostReply, LinkError> {
        let request = mailbox::encode(message)?;
        self.memory.put(&request)?;
        // SAFETY: `new` has allowed the ports, in this thread or the one that made it; header
        // and data pages are those of `self.memory`, borrowed exclusively.
        unsafe { ports::ring_mailbox(self.header_frame) };
        let reply = self.memory.take()?;
        if reply == request {
            return Err(LinkError::NoAnswer);
        }
        Ok(mailbox::decode(&reply)?)
    }
}

/// The mailbox's memory: the header page, then the data pages.
#[derive(Debug)]
struct MailboxPages {
    area: Pages,
    /// Guest-physical addresses of the data pages.
    pages: Vec<u64>,
}

impl MailboxPages {
    fn put(&mut self, message: &[u8]) -> Result<(), MailboxError> {
        let header = Header {
            len: message.len(),
            pages: self.pages.clone(),
        };
        self.write(0, &header.to_bytes())?;
        self.write(PAGE_SIZE, message)
    }

    fn take(&self) -> Result<Vec<u8>, MailboxError> {
        let header = Header::parse(&self.read(0, PAGE_SIZE)?)?;
        self.read(PAGE_SIZE, header.len)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), MailboxError> {
        let written = self.area.write(offset, bytes);
        written.ok_or(too_large(bytes.len()))
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, MailboxError> {
        self.area.read(offset, len).ok_or(too_large(len))
    }
}

fn too_large(need: usize) -> MailboxError {
    MailboxError::TooLarge {
        need,
        have: CAPACITY,
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::message::MAX_LOCATE;

    use super::*;

    fn memory() -> MailboxPages {
        MailboxPages {
            area: Pages::new(1 + DATA_PAGES).unwrap(),
            pages: (1..=DATA_PAGES as u64).map(|n| n << 12).collect(),
        }
    }

    #[test]
    fn the_host_parses_what_was_put() {
        let mut memory = memory();
        let long = vec![7; 3 * PAGE_SIZE + 1];
        memory.put(&long).unwrap();
        let header = Header::parse(&memory.read(0, PAGE_SIZE).unwrap()).unwrap();
        assert_eq!(header.len, long.len());
        assert_eq!(header.pages, memory.pages);
        assert_eq!(memory.take().unwrap(), long);
    }

    #[test]
    fn a_message_too_large_is_refused() {
        let mut memory = memory();
        assert!(memory.put(&vec![0; CAPACITY]).is_ok());
        assert_eq!(
            memory.put(&vec![0; CAPACITY + 1]),
            Err(too_large(CAPACITY + 1))
        );
    }

    #[test]
    fn an_answer_beyond_the_pages_is_refused() {
        let mut memory = memory();
        memory.put(b"x").unwrap();
        let lie = u32::try_from(CAPACITY + 1).unwrap().to_le_bytes();
        memory.write(4, &lie).unwrap();
        assert!(memory.take().is_err());
    }

    /// The largest ring's announcement must fit.
    #[test]
    fn the_largest_ring_can_be_announced() {
        let ring = AgentMessage::Ring(unwindlab_abi::message::RingAnnounce {
            ring: u32::MAX,
            cpu: u32::MAX,
            control_page: u64::MAX,
            // Below 16 TiB, as the mailbox itself.
            data_pages: vec![(1 << 44) - 0x1000; MAX_LOCATE as usize],
            backward: false,
        });
        assert!(mailbox::encode(&ring).unwrap().len() <= CAPACITY);
    }
}
