//! The SFrame section of the code without frame pointers, registered with a kernel that reads such
//! sections.

use rustix::io::Errno;
use unwindlab_abi::WorkloadKind;
use unwindlab_abi::message::KnownStack;
use unwindlab_abi::plan::SframeSection;
use unwindlab_sframe::{Base, EncodeError, Function, Row, Rules, Section, Version};

use super::BARE_FRAME_BYTES;
use super::code::{self, Bare};
use crate::pages::Pages;

/// `PR_ADD_SFRAME` and `PR_REMOVE_SFRAME` of the proposal
/// (guest-kernel/patches/proposals/sframe.patch): section, size, text, size.
pub(crate) const ADD: i32 = 0x5346_5201;
pub(crate) const REMOVE: i32 = 0x5346_5202;

/// Why the section cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum SframeError {
    /// The kernel does not know of such sections.
    #[error("the kernel has no prctl PR_ADD_SFRAME")]
    Unsupported,
    /// It knows them, and refuses this one.
    #[error("prctl PR_ADD_SFRAME: {0}")]
    Refused(Errno),
    /// No memory near enough.
    #[error("cannot map a page below 2 GiB: {0}")]
    Memory(Errno),
    /// It does not fit a page.
    #[error("the section has {0} bytes, more than a page")]
    Large(usize),
    /// The writer cannot say it.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A registered section. It is taken away when this is dropped.
#[derive(Debug)]
pub struct Registered {
    section: Encoded,
    covered: Vec<(u64, u64)>,
}

impl Registered {
    /// Registers the section of a workload's code, if it is to have one.
    ///
    /// # Errors
    /// [`SframeError`].
    pub fn new(kind: WorkloadKind, section: SframeSection) -> Result<Option<Self>, SframeError> {
        let (version, pc_relative) = match section {
            SframeSection::V2 => (Version::V2, false),
            SframeSection::V2Relative => (Version::V2, true),
            SframeSection::V3
            | SframeSection::V3WithoutRecursion
            | SframeSection::V3WithoutTailCall => (Version::V3, true),
            SframeSection::None => return Ok(None),
        };
        let own_leaf = (kind == WorkloadKind::OwnStackFrameless).then(code::bare_own_leaf);
        let functions: Vec<Bare> = code::bare().into_iter().chain(own_leaf).collect();
        let left_out = match section {
            SframeSection::V3WithoutRecursion => Some(code::bare_recursion()),
            SframeSection::V3WithoutTailCall => Some(code::bare_tail_call()),
            _ => None,
        };
        let functions = functions.iter().filter(|it| Some(it.start) != left_out);
        Self::of(Section {
            version,
            pc_relative,
            functions: functions.map(function).collect(),
        })
        .map(Some)
    }

    /// Registers a section for the 32-bit chain, as if each of its instructions were the first of a
    /// 64-bit function.
    ///
    /// # Errors
    /// [`SframeError`].
    pub fn of_compat() -> Result<Self, SframeError> {
        let (start, end) = code::compat_text();
        let whole = Bare {
            start,
            end,
            rows: vec![(start, 8)],
        };
        Self::of(Section {
            version: Version::V3,
            pc_relative: true,
            functions: vec![function(&whole)],
        })
    }

    pub(super) fn of(section: Section) -> Result<Self, SframeError> {
        let covered = { section.functions.iter() }
            .map(|it| (it.start, it.start + u64::from(it.size)))
            .collect();
        let section = Encoded::new(&section)?;
        match prctl(ADD, section.arguments()) {
            Ok(()) => Ok(Self { section, covered }),
            Err(Errno::INVAL) if !knows_sections() => Err(SframeError::Unsupported),
            Err(errno) => Err(SframeError::Refused(errno)),
        }
    }
}

/// A section in memory of its own.
#[derive(Debug)]
pub(super) struct Encoded {
    pages: Pages,
    size: u64,
    /// Start and size of the code from its first function to its last.
    text: (u64, u64),
}

impl Encoded {
    pub(super) fn new(section: &Section) -> Result<Self, SframeError> {
        let functions = &section.functions;
        let text = functions.first().map_or(0, |it| it.start);
        let end = functions
            .last()
            .map_or(0, |it| it.start + u64::from(it.size));
        let mut pages = Pages::low(1).map_err(SframeError::Memory)?;
        let bytes = section.encode(pages.address())?.bytes;
        pages
            .write(0, &bytes)
            .ok_or(SframeError::Large(bytes.len()))?;
        Ok(Self {
            pages,
            size: bytes.len() as u64,
            text: (text, end - text),
        })
    }

    /// What `PR_ADD_SFRAME` takes.
    pub(super) fn arguments(&self) -> [u64; 4] {
        [self.pages.address(), self.size, self.text.0, self.text.1]
    }
}

impl Registered {
    /// The code that it describes.
    #[must_use]
    pub fn covered(&self) -> Vec<(u64, u64)> {
        self.covered.clone()
    }
}

/// The stacks at every instruction of a chain of `depth` levels between root and leaf, whose root
/// has this stack pointer.
///
/// They follow from what calls, pushes and subtractions do to the stack pointer, not from the rows
/// of the section: a level is told by the stack pointer alone, because a level has
/// [`BARE_FRAME_BYTES`] and its CFA is 8, 16 or 40 bytes above.
#[must_use]
pub fn known_stacks(root: u64, depth: u32) -> Vec<KnownStack> {
    let returns = code::returns(WorkloadKind::Frameless);
    let [begin, recursion, tail, leaf] = code::bare_parts();
    let level = |depth: u32| (returns.level, depth);
    let of = |(start, end): (u64, u64), stack_pointer, callers: Vec<(u64, u32)>| KnownStack {
        start,
        end,
        stack_pointer: Some(stack_pointer),
        callers: callers.into_iter().filter(|it| it.1 > 0).collect(),
    };
    let mut stacks = vec![of(begin, root, Vec::new())];
    let frame = BARE_FRAME_BYTES as u64;
    for above in 0..depth {
        let cfa = root.wrapping_sub(u64::from(above) * frame);
        for taken in [8, 16, frame] {
            let callers = vec![level(above), (returns.root, 1)];
            stacks.push(of(recursion, cfa.wrapping_sub(taken), callers));
        }
    }
    let cfa = root.wrapping_sub(u64::from(depth) * frame);
    let callers = [
        (returns.innermost, 1),
        level(depth.saturating_sub(1)),
        (returns.root, 1),
    ];
    let taken: [(_, &[u64]); 2] = [(tail, &[8, 16]), (leaf, &[8, 16, 0x1010, 0x1018])];
    for (code, taken) in taken {
        let stack = |&taken| of(code, cfa.wrapping_sub(taken), callers.to_vec());
        stacks.extend(taken.iter().map(stack));
    }
    stacks
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Unmapping would take it away, too.
        let _ = prctl(REMOVE, [self.section.pages.address(), 0, 0, 0]);
    }
}

/// Whether the kernel has the two prctls: nothing is registered at address 0.
pub(crate) fn knows_sections() -> bool {
    prctl(REMOVE, [0; 4]) == Err(Errno::NOENT)
}

pub(crate) fn prctl(option: i32, arguments: [u64; 4]) -> Result<(), Errno> {
    let [a, b, c, d] = arguments;
    // SAFETY: the kernel reads the section, which stays as long as it is registered.
    match unsafe { libc::prctl(option, a, b, c, d) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// The functions of the code without frame pointers.
pub(crate) fn functions() -> Vec<Function> {
    code::bare().iter().map(function).collect()
}

fn function(bare: &Bare) -> Function {
    let row = |&(address, cfa): &(u64, i32)| Row {
        offset: distance(bare.start, address),
        rules: Rules::Plain {
            base: Base::StackPointer,
            cfa,
            frame_pointer: None,
        },
    };
    let outermost = Row {
        offset: 0,
        rules: Rules::Outermost,
    };
    let rows: Vec<Row> = bare.rows.iter().map(row).collect();
    Function {
        start: bare.start,
        size: distance(bare.start, bare.end),
        repeats: None,
        signal: false,
        rows: if rows.is_empty() {
            vec![outermost]
        } else {
            rows
        },
    }
}

/// Within `chain.s`.
fn distance(from: u64, to: u64) -> u32 {
    u32::try_from(to.wrapping_sub(from)).unwrap_or(u32::MAX)
}
