//! The BPF program on the sampling event.

use unwindlab_abi::user_mode::{
    Asked, COUNTERS, Counter, REQUEST_BYTES, REQUEST_HEAD, RING_BYTES, request,
};

use super::asm::{Assembler, Code, Label, Reg};
use super::object::MapDefinition;

/// Most threads that can opt in.
pub const MAX_THREADS: u32 = 512;

/// The maps.
pub const MAPS: [MapDefinition; 4] = [
    // By id of the workload's threads: the thread's slot in the next one.
    MapDefinition {
        name: THREADS,
        kind: 1,
        key: 4,
        value: 4,
        entries: MAX_THREADS,
        flags: 0,
    },
    // The pending nonces, which the handler takes away; OPTED_OUT of who has not opted in.
    MapDefinition {
        name: PENDING,
        kind: 2,
        key: 4,
        value: 8,
        entries: MAX_THREADS,
        flags: MMAPABLE,
    },
    MapDefinition {
        name: COUNTS,
        kind: 2,
        key: 4,
        value: COUNTER_BYTES,
        entries: 1,
        flags: MMAPABLE,
    },
    MapDefinition {
        name: RING,
        kind: 27,
        key: 0,
        value: 0,
        entries: ENTRIES,
        flags: 0,
    },
];
/// The names of the maps.
pub const THREADS: &str = "threads";
/// Pending nonces, by slot.
pub const PENDING: &str = "pending";
/// The counters.
pub const COUNTS: &str = "counters";
/// The ring buffer.
pub const RING: &str = "requests";

#[expect(clippy::cast_possible_truncation, reason = "there are 8")]
const COUNTER_BYTES: u32 = 8 * COUNTERS as u32;
#[expect(clippy::cast_possible_truncation, reason = "it is 1 MiB")]
const ENTRIES: u32 = RING_BYTES as u32;

/// `BPF_F_MMAPABLE`.
pub(crate) const MMAPABLE: u32 = 1 << 10;
/// `BPF_RB_NO_WAKEUP`: nobody waits, and a wake-up would be another use of `irq_work`.
const NO_WAKEUP: i32 = 1;
/// `PIDTYPE_PID` of `enum pid_type`: the thread itself.
const TO_THREAD: i32 = 0;

/// Helpers, `enum bpf_func_id`.
pub(crate) mod helper {
    pub(crate) const MAP_LOOKUP: i32 = 1;
    pub(crate) const CPU: i32 = 8;
    pub(crate) const PID_TGID: i32 = 14;
    pub(crate) const GET_STACK: i32 = 67;
    pub(crate) const GET_TASK_STACK: i32 = 141;
    pub(crate) const RING_RESERVE: i32 = 131;
    pub(crate) const RING_SUBMIT: i32 = 132;
    pub(crate) const COPY_FROM_USER: i32 = 148;
    pub(crate) const TASK: i32 = 158;
    pub(crate) const TASK_REGISTERS: i32 = 175;
}

/// Byte offsets from the frame's end.
const KEY: i16 = -4;
const SLOT: i16 = -8;
const CPU: i16 = -16;

/// The byte offset of a word.
#[expect(clippy::cast_possible_truncation, reason = "a record has 38 words")]
pub(crate) const fn word(index: usize) -> i16 {
    8 * index as i16
}

/// The code. The kernel function is `bpf_send_signal_task`, by its id. `instead`: perf writes no sample of its own.
#[must_use]
pub fn code(signal: i32, send_signal: i32, instead: bool) -> Option<Code> {
    let mut code = Assembler::default();
    request(&mut code, instead, |code| {
        code.call(helper::TASK)
            .copy(Reg::R1, Reg::R0)
            .set(Reg::R2, signal)
            .set(Reg::R3, TO_THREAD)
            .load(Reg::R4, Reg::R8, word(request::NONCE))
            .call_kernel(send_signal);
    });
    code.finish()
}

/// The whole program, but for how an answer is asked for: `send` leaves 0 or a negative errno in R0. It finds the
/// context in R6, the thread's pending nonce in R7, the request in R8 and the counters in R9, as pointers, and
/// leaves them there.
pub(crate) fn request(code: &mut Assembler, instead: bool, send: impl FnOnce(&mut Assembler)) {
    const OUT: Label = Label(0);
    code.copy(Reg::R6, Reg::R1);
    look_up(code);
    reserve(code, OUT);
    ask(code, send);
    // The kernel stack. The interrupted registers are behind the context.
    code.copy(Reg::R1, Reg::R6)
        .copy(Reg::R2, Reg::R8)
        .add(Reg::R2, i32::from(word(REQUEST_HEAD)))
        .set(Reg::R3, i32::from(word(REQUEST_BYTES / 8 - REQUEST_HEAD)))
        .set(Reg::R4, 0)
        .call(helper::GET_STACK)
        .store(Reg::R8, word(request::STACK_BYTES), Reg::R0)
        .copy(Reg::R1, Reg::R8)
        .set(Reg::R2, NO_WAKEUP)
        .call(helper::RING_SUBMIT);
    // 1: perf writes its own sample, too.
    code.label(OUT).set(Reg::R0, i32::from(!instead)).exit();
}

/// Leaves the thread's pending nonce in R7 and the counters in R9, as pointers; a thread that is not of the
/// workload ends the program.
fn look_up(code: &mut Assembler) {
    const OUT: Label = Label(0);
    let find = |code: &mut Assembler, map, key: i16| {
        code.map(Reg::R1, map)
            .copy(Reg::R2, Reg::R10)
            .add(Reg::R2, key.into())
            .call(helper::MAP_LOOKUP)
            .if_zero(Reg::R0, OUT);
    };
    // The lower half is the thread's id.
    code.call(helper::PID_TGID)
        .store_half(Reg::R10, KEY, Reg::R0);
    find(code, THREADS, KEY);
    code.load_half(Reg::R1, Reg::R0, 0)
        .store_half(Reg::R10, SLOT, Reg::R1);
    find(code, PENDING, SLOT);
    code.copy(Reg::R7, Reg::R0)
        .store_half_value(Reg::R10, SLOT, 0);
    find(code, COUNTS, SLOT);
    code.copy(Reg::R9, Reg::R0);
}

/// Leaves room in the ring buffer in R8. Without room there is no signal either.
fn reserve(code: &mut Assembler, out: Label) {
    const ROOM: Label = Label(1);
    count(code, Counter::Samples);
    code.map(Reg::R1, RING)
        .set(Reg::R2, i32::from(word(REQUEST_BYTES / 8)))
        .set(Reg::R3, 0)
        .call(helper::RING_RESERVE)
        .unless(Reg::R0, 0, ROOM);
    count(code, Counter::Full);
    code.jump(out);
    code.label(ROOM)
        .copy(Reg::R8, Reg::R0)
        .call(helper::PID_TGID)
        .store(Reg::R8, word(request::TASK), Reg::R0)
        .call(helper::CPU)
        .store(Reg::R8, word(request::CPU), Reg::R0)
        .store_value(Reg::R8, word(request::ANSWER), 0);
}

/// Uses the pending nonce, or makes one and sends for its answer; of a thread that has not opted in, neither.
fn ask(code: &mut Assembler, send: impl FnOnce(&mut Assembler)) {
    const AGAIN: Label = Label(2);
    const SENT: Label = Label(3);
    const STACK: Label = Label(4);
    const OPTED_IN: Label = Label(5);
    let asked = |code: &mut Assembler, asked: Asked| {
        code.store_value(Reg::R8, word(request::ASKED), asked as i32);
    };
    // All ones: the thread has not opted in.
    code.load(Reg::R1, Reg::R7, 0)
        .add(Reg::R1, 1)
        .unless(Reg::R1, 0, OPTED_IN)
        .store_value(Reg::R8, word(request::NONCE), 0);
    asked(code, Asked::NotOptedIn);
    code.jump(STACK).label(OPTED_IN);
    code.load(Reg::R1, Reg::R7, 0).unless(Reg::R1, 0, AGAIN);
    // The CPU's number plus one above a count, so that no nonce is 0.
    code.load(Reg::R0, Reg::R8, word(request::CPU))
        .add(Reg::R0, 1)
        .shift_left(Reg::R0, 48)
        .store(Reg::R10, CPU, Reg::R0)
        .set(Reg::R1, 1)
        .fetch_add(Reg::R9, word(Counter::Nonces as usize), Reg::R1)
        .add(Reg::R1, 1)
        .load(Reg::R0, Reg::R10, CPU)
        .or(Reg::R1, Reg::R0)
        .store(Reg::R8, word(request::NONCE), Reg::R1)
        .store(Reg::R7, 0, Reg::R1);
    send(code);
    // An `int`.
    code.shift_left(Reg::R0, 32)
        .shift_right_signed(Reg::R0, 32)
        .store(Reg::R8, word(request::ANSWER), Reg::R0)
        .if_zero(Reg::R0, SENT)
        .store_value(Reg::R7, 0, 0);
    count(code, Counter::Refused);
    asked(code, Asked::Refused);
    code.jump(STACK).label(SENT);
    asked(code, Asked::Sent);
    code.jump(STACK)
        .label(AGAIN)
        .store(Reg::R8, word(request::NONCE), Reg::R1);
    asked(code, Asked::Again);
    code.label(STACK);
}

fn count(code: &mut Assembler, counter: Counter) {
    code.set(Reg::R1, 1)
        .fetch_add(Reg::R9, word(counter as usize), Reg::R1);
}
