//! The interpreter: its code, its program, and who unwinds it.

use std::mem::offset_of;

use unwindlab_abi::message::UserSymbol;
use unwindlab_abi::user_stack::INTERPRETED;
use unwindlab_abi::{MARK_PORT, WorkloadKind};
use unwindlab_unwinder::{Activation, Interpreted, MAX_CALLS, Region, Unwinder};

use super::ChainWords;
use super::code::{self, Framed, labels};

std::arch::global_asm!(
    include_str!("interpreter.s"),
    MARK_PORT = const MARK_PORT,
    SYS_GETPPID = const libc::SYS_getppid,
    ARM = const offset_of!(ChainWords, arm),
    DONE = const offset_of!(ChainWords, done),
    PROGRESS = const offset_of!(ChainWords, progress),
    DISTANCE = const DISTANCE,
    CALLS = const offset_of!(Activation, calls),
    MAX_CALLS = const MAX_CALLS,
    NOTHING = const Operation::Nothing as u8,
    CALL_FUNCTION = const Operation::Call as u8,
    RETURN = const Operation::Return as u8,
    CALL_NATIVE = const Operation::Native as u8,
    END = const Operation::End as u8,
    FUNCTIONS = const INTERPRETED.len(),
);

labels! {
    ul_interpret ul_interpret_framed ul_interpret_called ul_interpret_returned ul_interpret_return
    ul_interpret_unframed ul_interpret_end
    ul_native_leaf ul_native_framed ul_native_call ul_native_return ul_native_return_end
    ul_native_unframed ul_native_end
}

/// How far below the interpreter's frame pointer its activation lies: behind two saved registers.
const DISTANCE: usize = (16 + size_of::<Activation>()).next_multiple_of(16);

/// What the bytes of the program say.
#[repr(u8)]
#[derive(Debug, Clone, Copy)]
enum Operation {
    Nothing = 1,
    /// Of the function whose number follows.
    Call = 2,
    Return = 3,
    /// Of the native leaf.
    Native = 4,
    End = 5,
}

/// Where the interpreter starts: the leaf of its chain, to the native code.
pub(super) fn start() -> u64 {
    ul_interpret()
}

/// The part of the native leaf in which its frame is complete.
pub(super) fn framed_leaf() -> Framed {
    code::framed(ul_native_framed(), ul_native_unframed(), ul_native_return())
}

/// The return address into the interpreter.
pub(super) fn return_address() -> u64 {
    ul_interpret_return()
}

/// Who unwinds the interpreter's code semantically; `native` knows the way to its caller.
#[must_use]
pub fn unwinder(native: &dyn Unwinder) -> Interpreted<'_> {
    Interpreted {
        framed: (ul_interpret_framed(), ul_interpret_unframed()),
        distance: DISTANCE as u64,
        functions: INTERPRETED.len() as u64,
        native,
    }
}

/// The interpreter's code, to be registered with its unwinder.
#[must_use]
pub fn region<'a>(unwinder: &'a Interpreted<'a>) -> Region<'a> {
    Region {
        start: ul_interpret(),
        end: ul_interpret_end(),
        unwinder,
    }
}

/// The instructions behind which one more function is called, and one less.
#[must_use]
pub fn calls_and_returns() -> (u64, u64) {
    (ul_interpret_called(), ul_interpret_returned())
}

/// As [`super::symbols`].
pub(super) fn symbols() -> Vec<UserSymbol> {
    [
        ("interpret", ul_interpret(), ul_interpret_end()),
        ("native_leaf", ul_native_leaf(), ul_native_end()),
        ("native_call", ul_native_call(), ul_native_return()),
        ("native_return", ul_native_return(), ul_native_return_end()),
    ]
    .map(|(name, start, end)| UserSymbol {
        name: name.to_owned(),
        start,
        end,
    })
    .into()
}

/// Frames besides those of `descend`: leaf, root, and for some kinds the interpreter.
pub(super) fn other_frames(kind: WorkloadKind) -> u32 {
    if kind.is_interpreted() { 3 } else { 2 }
}
