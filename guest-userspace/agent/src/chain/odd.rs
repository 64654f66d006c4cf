//! The code of `frameless-shapes` (`odd.s`): a PLT, two adjacent sections, code whose `rbp` leads to
//! no frame, code with a frame pointer in no section, a page of code whose section comes late and is
//! taken away, and a signal.

use rustix::mm::{MprotectFlags, mprotect};
use unwindlab_abi::message::{KnownStack, Program, UserSymbol};
use unwindlab_sframe::{Base, Function, Row, Rule, Rules, Section, Version};

use super::code::labels;
use super::frameless::{ADD, Encoded, REMOVE, Registered, SframeError};
use crate::pages::Pages;

labels! {
    ul_odd_start ul_odd_begin ul_odd_begin_end ul_odd_plt_return ul_odd_near_return ul_odd_own_return
    ul_odd_framed_return ul_odd_late ul_odd_late_return ul_odd_late_end ul_odd_gone ul_odd_gone_return
    ul_odd_gone_end ul_odd_raise_return ul_odd_root_end ul_odd_plt ul_odd_plt_end ul_odd_resolve
    ul_odd_resolve_end ul_odd_target ul_odd_target_end ul_odd_near_leaf ul_odd_near_leaf_end
    ul_odd_own_leaf ul_odd_own_leaf_end ul_odd_framed_leaf ul_odd_framed_leaf_end ul_odd_late_leaf
    ul_odd_late_leaf_end ul_odd_gone_leaf ul_odd_gone_leaf_end ul_odd_handler ul_odd_handler_end
    ul_odd_own ul_odd_own_leaf_return ul_odd_own_end ul_odd_raise ul_odd_raised ul_odd_raise_end
    ul_odd_restorer_before ul_odd_restorer ul_odd_restorer_end ul_odd_near ul_odd_near_leaf_return
    ul_odd_near_end ul_odd_framed_leaf_return ul_odd_page
    ul_odd_page_late_return ul_odd_page_gone ul_odd_page_gone_return ul_odd_page_end
}

/// Bytes of an entry of the PLT, and those up to behind its `push`.
const PLT_ENTRY: u8 = 16;
const PLT_PUSHED: u32 = 11;
/// Number of `rsp` in DWARF.
const STACK_POINTER: u32 = 7;
/// Where a signal's frame has the registers of the interrupted code, from the stack pointer at the
/// restorer, which is the address of the `ucontext` (`struct rt_sigframe`,
/// arch/x86/include/asm/sigframe.h; `struct sigcontext_64`, arch/x86/include/uapi/asm/sigcontext.h).
const SIGNAL_RBP: i32 = 120;
const SIGNAL_RSP: i32 = 160;
const SIGNAL_RIP: i32 = 168;

/// The addresses at which the code calls the page, and which the page calls.
pub type Calls = [u64; 4];

/// Sections and memory of the workload; everything goes when this is dropped.
#[derive(Debug)]
pub struct Shapes {
    _sections: [Registered; 2],
    _page: Pages,
    late: Encoded,
    calls: Calls,
    program: Program,
}

impl Shapes {
    /// Maps the page and registers the two sections of the code that stays.
    ///
    /// # Errors
    /// [`SframeError`].
    pub fn new() -> Result<Self, SframeError> {
        let (page, moved) = page()?;
        let main: Vec<Function> = main_functions();
        let near = vec![body(ul_odd_near(), ul_odd_near_end(), 4, 48, None)];
        let on_page = vec![
            body(moved(ul_odd_page()), moved(ul_odd_page_gone()), 4, 16, None),
            body(
                moved(ul_odd_page_gone()),
                moved(ul_odd_page_end()),
                4,
                16,
                None,
            ),
        ];
        // The second function runs where the section is gone.
        let late = on_page.get(..1).unwrap_or_default();
        let covered = { main.iter().chain(&near).chain(late) }
            .map(|it| (it.start, it.start + u64::from(it.size)))
            .collect();
        let late = Encoded::new(&described(on_page))?;
        let sections = [
            Registered::of(described(main))?,
            Registered::of(described(near))?,
        ];
        Ok(Self {
            _sections: sections,
            late,
            calls: [
                moved(ul_odd_page()),
                moved(ul_odd_page_gone()),
                ul_odd_late_leaf(),
                ul_odd_gone_leaf(),
            ],
            program: Program {
                stacks: stacks(&moved),
                covered,
            },
            _page: page,
        })
    }

    /// The stacks at each instruction, and what sections describe.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Where calls lead that go through memory.
    #[must_use]
    pub const fn calls(&self) -> Calls {
        self.calls
    }

    /// Arguments of the `prctl` that registers the page's section, and of the one that takes it away.
    #[must_use]
    pub fn prctls(&self) -> [[u64; 5]; 2] {
        let [section, size, text, text_size] = self.late.arguments();
        let number = |option: i32| u64::from(option.unsigned_abs());
        [
            [number(ADD), section, size, text, text_size],
            [number(REMOVE), section, 0, 0, 0],
        ]
    }

    /// The handler of the signal, and where that returns to.
    #[must_use]
    pub fn handler() -> [u64; 2] {
        [ul_odd_handler(), ul_odd_restorer()]
    }
}

/// A section of these functions, which must be in order.
fn described(functions: Vec<Function>) -> Section {
    Section {
        version: Version::V3,
        pc_relative: true,
        functions,
    }
}

/// The page with its code, and where on it what is.
fn page() -> Result<(Pages, impl Fn(u64) -> u64), SframeError> {
    let mut page = Pages::low(1).map_err(SframeError::Memory)?;
    let (from, length) = (ul_odd_page(), ul_odd_page_end() - ul_odd_page());
    let length = usize::try_from(length).unwrap_or(0);
    let code = std::ptr::with_exposed_provenance::<u8>(usize::try_from(from).unwrap_or(0));
    // SAFETY: the code between the two labels, which is never written.
    let code = unsafe { std::slice::from_raw_parts(code, length) };
    page.write(0, code).ok_or(SframeError::Large(length))?;
    let start = page.address();
    let at = page.at(0, unwindlab_abi::mailbox::PAGE_SIZE);
    let at = at.ok_or(SframeError::Large(length))?;
    let executable = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: the page is this function's, and is not written again.
    unsafe {
        mprotect(
            at.as_ptr().cast(),
            unwindlab_abi::mailbox::PAGE_SIZE,
            executable,
        )
    }
    .map_err(SframeError::Memory)?;
    Ok((page, move |address: u64| address - from + start))
}

/// A function that lowers the stack pointer by its first instruction, of so many bytes, to so many
/// below the CFA, and raises it just before its last byte.
fn body(start: u64, end: u64, first: u32, cfa: i32, frame_pointer: Option<i32>) -> Function {
    let size = u32::try_from(end - start).unwrap_or(0);
    let row = |offset, cfa, frame_pointer| Row {
        offset,
        rules: Rules::Plain {
            base: Base::StackPointer,
            cfa,
            frame_pointer,
        },
    };
    Function {
        start,
        size,
        repeats: None,
        signal: false,
        rows: vec![
            row(0, 8, None),
            row(first, cfa, frame_pointer),
            row(size.saturating_sub(1), 8, None),
        ],
    }
}

fn leaf(start: u64, end: u64) -> Function {
    body(start, end, 1, 16, None)
}

/// The functions of the first section, in order.
fn main_functions() -> Vec<Function> {
    let of = |start: u64, end: u64, rows| Function {
        start,
        size: u32::try_from(end - start).unwrap_or(0),
        repeats: None,
        signal: false,
        rows,
    };
    let at = |offset, cfa| Row {
        offset,
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
    let stored = |offset| Rule {
        register: Some(STACK_POINTER),
        offset,
        stored: true,
    };
    let signal = Row {
        offset: 0,
        rules: Rules::Flexible {
            cfa: stored(SIGNAL_RSP),
            return_address: Some(stored(SIGNAL_RIP)),
            frame_pointer: Some(stored(SIGNAL_RBP)),
        },
    };
    vec![
        of(ul_odd_start(), ul_odd_root_end(), vec![outermost]),
        Function {
            repeats: Some(PLT_ENTRY),
            ..of(
                ul_odd_plt(),
                ul_odd_plt_end(),
                vec![at(0, 8), at(PLT_PUSHED, 16)],
            )
        },
        of(
            ul_odd_resolve(),
            ul_odd_resolve_end(),
            vec![at(0, 16), at(4, 8)],
        ),
        leaf(ul_odd_target(), ul_odd_target_end()),
        leaf(ul_odd_near_leaf(), ul_odd_near_leaf_end()),
        leaf(ul_odd_own_leaf(), ul_odd_own_leaf_end()),
        leaf(ul_odd_framed_leaf(), ul_odd_framed_leaf_end()),
        leaf(ul_odd_late_leaf(), ul_odd_late_leaf_end()),
        leaf(ul_odd_gone_leaf(), ul_odd_gone_leaf_end()),
        leaf(ul_odd_handler(), ul_odd_handler_end()),
        body(ul_odd_own(), ul_odd_own_end(), 1, 16, Some(-16)),
        body(ul_odd_raise(), ul_odd_raise_end(), 4, 32, None),
        Function {
            signal: true,
            ..of(
                ul_odd_restorer_before(),
                ul_odd_restorer_end(),
                vec![signal],
            )
        },
    ]
}

/// The stacks by construction: each function is called at one place.
fn stacks(moved: &impl Fn(u64) -> u64) -> Vec<KnownStack> {
    let of = |start, end, callers: &[u64]| KnownStack {
        start,
        end,
        stack_pointer: None,
        callers: callers.iter().map(|&address| (address, 1)).collect(),
    };
    let plt = [ul_odd_plt_return()];
    let near = [ul_odd_near_leaf_return(), ul_odd_near_return()];
    let own = [ul_odd_own_leaf_return(), ul_odd_own_return()];
    let framed = [ul_odd_framed_leaf_return(), ul_odd_framed_return()];
    let late = [moved(ul_odd_page_late_return()), ul_odd_late_return()];
    let gone = [moved(ul_odd_page_gone_return()), ul_odd_gone_return()];
    let signal = [ul_odd_restorer(), ul_odd_raised(), ul_odd_raise_return()];
    let caller = |callers: &[u64; 2]| [callers[1]];
    vec![
        of(ul_odd_begin(), ul_odd_begin_end(), &[]),
        of(ul_odd_late(), ul_odd_late_end(), &[]),
        of(ul_odd_gone(), ul_odd_gone_end(), &[]),
        of(ul_odd_plt(), ul_odd_plt_end(), &plt),
        of(ul_odd_resolve(), ul_odd_resolve_end(), &plt),
        of(ul_odd_target(), ul_odd_target_end(), &plt),
        of(ul_odd_near(), ul_odd_near_end(), &caller(&near)),
        of(ul_odd_near_leaf(), ul_odd_near_leaf_end(), &near),
        of(ul_odd_own(), ul_odd_own_end(), &caller(&own)),
        of(ul_odd_own_leaf(), ul_odd_own_leaf_end(), &own),
        of(ul_odd_framed_leaf(), ul_odd_framed_leaf_end(), &framed),
        of(
            moved(ul_odd_page()),
            moved(ul_odd_page_gone()),
            &caller(&late),
        ),
        of(ul_odd_late_leaf(), ul_odd_late_leaf_end(), &late),
        of(
            moved(ul_odd_page_gone()),
            moved(ul_odd_page_end()),
            &caller(&gone),
        ),
        of(ul_odd_gone_leaf(), ul_odd_gone_leaf_end(), &gone),
        of(ul_odd_raise(), ul_odd_raise_end(), &[ul_odd_raise_return()]),
        of(ul_odd_handler(), ul_odd_handler_end(), &signal),
        of(
            ul_odd_restorer(),
            ul_odd_restorer_end(),
            &[signal[1], signal[2]],
        ),
    ]
}

/// The symbols of the code.
pub(super) fn symbols() -> Vec<UserSymbol> {
    [
        ("odd_begin", ul_odd_begin(), ul_odd_begin_end()),
        ("odd_late", ul_odd_late(), ul_odd_late_end()),
        ("odd_gone", ul_odd_gone(), ul_odd_gone_end()),
        ("odd_handler", ul_odd_handler(), ul_odd_handler_end()),
    ]
    .map(|(name, start, end)| UserSymbol {
        name: name.to_owned(),
        start,
        end,
    })
    .to_vec()
}
