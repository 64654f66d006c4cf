//! The chain, its stack, and memory for a section: what every trial needs.

use std::ops::Range;

use rustix::io::Errno;
use unwindlab_abi::Observation;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::observation::SFRAME_PIECE;
use unwindlab_abi::sframe::{SframeAsks, SframeCase, SframeExpects, SframeReads};
use unwindlab_sframe::{Encoded, Function, Registered, Registers, Section, Version, walk};

use super::super::WorkloadError;
use crate::chain::frameless::{self, ADD, REMOVE, SframeError};
use crate::chain::{BARE_FRAME_BYTES, Chain, LEAF_BYTES, NO_ADDRESS};
use crate::pages::Pages;

/// Pages for a section, with one before it and one behind it that are not its own.
pub(super) const SECTION_PAGES: usize = 256;
/// Frames that a section is followed for.
const FOLLOWED: usize = 24;

/// The three encodings of a section.
pub(super) const ENCODINGS: [(Version, bool); 3] = [
    (Version::V2, false),
    (Version::V2, true),
    (Version::V3, true),
];

pub(super) struct Ground {
    pub(super) chain: Chain,
    pub(super) thread: u32,
    stack: Pages,
    /// The page before the section, those for it, and the one behind.
    pub(super) memory: Pages,
    /// The functions of the chain.
    pub(super) functions: Vec<Function>,
    asks: Vec<SframeAsks>,
    pub(super) reads: Vec<SframeReads>,
}

impl Ground {
    pub(super) fn new(
        chain: Chain,
        thread: u32,
        stack_bytes: usize,
    ) -> Result<Self, WorkloadError> {
        if !frameless::knows_sections() {
            return Err(SframeError::Unsupported.into());
        }
        let memory = SframeError::Memory;
        let stack = Pages::new(stack_bytes.div_ceil(PAGE_SIZE)).map_err(memory)?;
        // SAFETY: nothing else uses the pages, and they are kept with the chain.
        let chain = unsafe { chain.on_stack(stack.end()) };
        let mut this = Self {
            chain,
            thread,
            stack,
            memory: Pages::low_shared(SECTION_PAGES + 2).map_err(memory)?,
            functions: frameless::functions(),
            asks: Vec::new(),
            reads: Vec::new(),
        };
        // What it leaves below the stack pointer of its system call is the same from here on.
        this.ask(SframeCase::NoSection, 0, 0, SframeExpects::Alone);
        Ok(this)
    }

    /// Where sections are put.
    pub(super) fn address(&self) -> u64 {
        self.memory.address() + PAGE_SIZE as u64
    }

    /// The code of the chain.
    pub(super) fn text(&self) -> Range<u64> {
        let start = self.functions.first().map_or(0, |it| it.start);
        let last = self.functions.last();
        start..last.map_or(0, |it| it.start + u64::from(it.size))
    }

    /// The section that describes the chain.
    pub(super) fn section(&self, (version, pc_relative): (Version, bool)) -> Section {
        Section {
            version,
            pc_relative,
            functions: self.functions.clone(),
        }
    }

    /// Its bytes.
    pub(super) fn encoded(&self, encoding: (Version, bool)) -> Result<Encoded, WorkloadError> {
        let section = self.section(encoding).encode(self.address());
        section.map_err(|e| SframeError::Encode(e).into())
    }

    /// Puts bytes where sections are.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), WorkloadError> {
        let put = self.memory.write(PAGE_SIZE, bytes);
        put.ok_or(WorkloadError::Sframe(SframeError::Large(bytes.len())))
    }

    /// Registers what is there, for the whole chain. Returns 0 or the errno.
    pub(super) fn register(&self, bytes: u64) -> i32 {
        self.register_for(bytes, self.text())
    }

    pub(super) fn register_for(&self, bytes: u64, text: Range<u64>) -> i32 {
        add(self.address(), bytes, text)
    }

    /// Takes it away.
    pub(super) fn remove(&self) {
        remove(self.address());
    }

    /// Runs the chain once, which asks, and notes what may come of it.
    pub(super) fn ask(
        &mut self,
        case: SframeCase,
        number: u32,
        errno: i32,
        expects: SframeExpects,
    ) {
        self.chain.run();
        self.note(case, number, errno, expects);
    }

    /// Notes a request.
    pub(super) fn note(
        &mut self,
        case: SframeCase,
        number: u32,
        errno: i32,
        expects: SframeExpects,
    ) {
        if let Some(last) = self.asks.last_mut()
            && last.case == case
            && last.first + last.count == number
            && last.errno == errno
            && last.expects == expects
        {
            last.count += 1;
            return;
        }
        self.asks.push(SframeAsks {
            case,
            first: number,
            count: 1,
            errno,
            expects,
        });
    }

    /// Registers bytes, asks, and takes them away: the chain is what they say, if they are not
    /// refused.
    pub(super) fn offer(
        &mut self,
        case: SframeCase,
        number: u32,
        bytes: &[u8],
    ) -> Result<i32, WorkloadError> {
        self.put(bytes)?;
        let errno = self.register(bytes.len() as u64);
        self.chain.run();
        // What callers had in registers is on the stack, too, and another word each time.
        let expects = match errno {
            0 => self.said(bytes),
            _ => SframeExpects::Alone,
        };
        self.note(case, number, errno, expects);
        if errno == 0 {
            self.remove();
        }
        Ok(errno)
    }

    /// What registered bytes say of the chain, at the system call of its leaf.
    pub(super) fn said(&self, bytes: &[u8]) -> SframeExpects {
        let section = Registered {
            bytes,
            address: self.address(),
            text: self.text(),
        };
        let stack = self.chain.expected_stack();
        let levels = self.chain.levels() * BARE_FRAME_BYTES as u64;
        let from = Registers {
            ip: stack.syscall_return,
            sp: self.stack.end() - levels - LEAF_BYTES,
            fp: NO_ADDRESS,
        };
        let words = |at: u64| {
            let offset = at.checked_sub(self.stack.address())?;
            let word = self.stack.read(usize::try_from(offset).ok()?, 8)?;
            Some(u64::from_ne_bytes(word.try_into().ok()?))
        };
        let said = walk(&section, from, &words, FOLLOWED);
        let whole: Vec<u64> = std::iter::once(stack.syscall_return)
            .chain(stack.caller_addresses())
            .collect();
        match said.ends {
            true if whole.starts_with(&said.frames) => SframeExpects::Shorter,
            true => SframeExpects::Says(said.frames),
            false => SframeExpects::Unknown,
        }
    }

    /// What was done, for the host.
    pub(super) fn observations(self) -> Vec<Observation> {
        let asks = self.asks.chunks(SFRAME_PIECE);
        let asks = asks.map(|piece| Observation::SframeAsks(piece.to_vec()));
        let reads = self.reads.chunks(SFRAME_PIECE);
        asks.chain(reads.map(|piece| Observation::SframeReads(piece.to_vec())))
            .collect()
    }
}

/// Registers a section for some code. Returns 0 or the errno.
pub(super) fn add(address: u64, bytes: u64, text: Range<u64>) -> i32 {
    let size = text.end.saturating_sub(text.start);
    let added = frameless::prctl(ADD, [address, bytes, text.start, size]);
    added.map_or_else(Errno::raw_os_error, |()| 0)
}

/// Takes a section away, if it is there.
pub(super) fn remove(address: u64) {
    let _ = frameless::prctl(REMOVE, [address, 0, 0, 0]);
}

/// Exact bytes of a right section must give the whole chain, or the reader and the writer differ.
pub(super) fn whole(ground: &mut Ground) -> Result<(), WorkloadError> {
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let bytes = ground.encoded(encoding)?.bytes;
        ground.put(&bytes)?;
        let errno = ground.register(bytes.len() as u64);
        ground.ask(SframeCase::Right, number, errno, SframeExpects::Whole);
        ground.remove();
        if ground.said(&bytes) != SframeExpects::Shorter {
            return Err(super::super::failed(
                ground.thread,
                "the reader does not follow a right section",
            )(Errno::PROTO));
        }
    }
    Ok(())
}
