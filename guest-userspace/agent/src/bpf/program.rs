//! The program: it asks as that of unwinding in user mode does, and answers by itself.

use unwindlab_abi::bpf::BpfStack;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::user_mode::{RESULT_FRAMES, RESULT_HEAD, RESULT_PAGES, request, result};

use super::types;
use crate::user_mode::asm::{Assembler, Code, Label, Reg};
use crate::user_mode::object::MapDefinition;
use crate::user_mode::program as user_mode;
use crate::user_mode::program::{MAPS as ASKING, MMAPABLE, PENDING, helper, word};

pub(super) use crate::user_mode::program::{COUNTS, RING, THREADS};

/// The results: the control page, then a page a slot.
pub(super) const RESULTS: &str = "results";

/// The maps of the asking, and the results. The callback, not user mode, takes pending nonces away.
pub(super) fn maps() -> [MapDefinition; 5] {
    let [threads, pending, counts, ring] = ASKING;
    let pending = MapDefinition {
        value: types::VALUE_BYTES,
        flags: 0,
        ..pending
    };
    let results = MapDefinition {
        name: RESULTS,
        kind: 2,
        key: 4,
        value: PAGE_BYTES,
        entries: SLOTS,
        flags: MMAPABLE,
    };
    [threads, pending, counts, ring, results]
}

#[expect(clippy::cast_possible_truncation, reason = "it is 4,096")]
const PAGE_BYTES: u32 = PAGE_SIZE as u32;
#[expect(clippy::cast_possible_truncation, reason = "there are 1,025")]
const SLOTS: u32 = RESULT_PAGES as u32;
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "504"
)]
const MOST_FRAMES: i32 = RESULT_FRAMES as i32;
/// `BPF_F_USER_STACK`.
const USER_STACK: i32 = 1 << 8;

/// Byte offsets of registers in `struct pt_regs`.
mod registers {
    pub(super) const BP: i16 = 32;
    pub(super) const IP: i16 = 128;
    pub(super) const SP: i16 = 152;
}

/// Byte offsets from the frame's end; those of the asking are above.
const INDEX: i16 = -20;
const PAGE: i16 = -32;
const PAIR: i16 = -48;

const NO_SLOT: Label = Label(10);
const CALLBACK: Label = Label(11);
const WALKED: Label = Label(12);
const ON: Label = Label(13);

/// The code. `schedule` is the id of `bpf_task_work_schedule_resume`; without it, the stack is taken at once.
pub(super) fn code(stack: BpfStack, schedule: Option<i32>) -> Option<Code> {
    let mut code = Assembler::default();
    let Some(schedule) = schedule else {
        user_mode::request(&mut code, false, at_once);
        return code.finish();
    };
    user_mode::request(&mut code, false, |code| {
        code.call(helper::TASK)
            .copy(Reg::R1, Reg::R0)
            .copy(Reg::R2, Reg::R7)
            .add(Reg::R2, types::WORK)
            .map(Reg::R3, PENDING)
            .function(Reg::R4, CALLBACK)
            .call_kernel(schedule);
    });
    // Called with the map, the key and the value.
    code.label(CALLBACK).copy(Reg::R6, Reg::R3);
    slot(&mut code);
    code.copy(Reg::R7, Reg::R0).load(Reg::R1, Reg::R6, 0).store(
        Reg::R7,
        word(result::NONCE),
        Reg::R1,
    );
    interrupted(&mut code);
    match stack {
        BpfStack::OwnWalk => walk(&mut code),
        _ => {
            code.call(helper::TASK).copy(Reg::R1, Reg::R0);
            get_stack(&mut code, helper::GET_TASK_STACK);
        }
    }
    code.store_value(Reg::R7, word(result::DONE), 1)
        .label(NO_SLOT)
        // Last, so that a nonce that a sample used again has its answer.
        .store_value(Reg::R6, 0, 0)
        .set(Reg::R0, 0)
        .exit();
    code.finish()
}

/// Leaves a slot of the results in R0, or jumps where there is none.
fn slot(code: &mut Assembler) {
    let find = |code: &mut Assembler| {
        code.map(Reg::R1, RESULTS)
            .copy(Reg::R2, Reg::R10)
            .add(Reg::R2, INDEX.into())
            .call(helper::MAP_LOOKUP)
            .if_zero(Reg::R0, NO_SLOT);
    };
    code.store_half_value(Reg::R10, INDEX, 0);
    find(code);
    code.set(Reg::R1, 1)
        .fetch_add(Reg::R0, 0, Reg::R1)
        .add(Reg::R1, 1)
        .store_half(Reg::R10, INDEX, Reg::R1);
    find(code);
}

/// Writes thread id, instruction and stack pointer of the task's registers, and leaves its frame pointer in R8.
fn interrupted(code: &mut Assembler) {
    code.call(helper::PID_TGID)
        .store_half(Reg::R10, INDEX, Reg::R0)
        .load_half(Reg::R1, Reg::R10, INDEX)
        .store(Reg::R7, word(result::TID), Reg::R1)
        .call(helper::TASK)
        .copy(Reg::R1, Reg::R0)
        .call(helper::TASK_REGISTERS)
        .load(Reg::R1, Reg::R0, registers::SP)
        .store(Reg::R7, word(result::SP), Reg::R1)
        .load(Reg::R1, Reg::R0, registers::IP)
        .store(Reg::R7, word(result::IP), Reg::R1)
        .store(Reg::R7, word(RESULT_HEAD), Reg::R1)
        .load(Reg::R8, Reg::R0, registers::BP);
}

/// Has a helper write the frames into the result in R7. Its first argument is in R1.
fn get_stack(code: &mut Assembler, helper: i32) {
    code.copy(Reg::R2, Reg::R7)
        .add(Reg::R2, word(RESULT_HEAD).into())
        .set(Reg::R3, 8 * MOST_FRAMES)
        .set(Reg::R4, USER_STACK)
        .call(helper)
        // Bytes, or a negative errno, which the host complains about.
        .shift_right_signed(Reg::R0, 3)
        .store(Reg::R7, word(result::FRAMES), Reg::R0);
}

/// Walks by frame pointers, from that in R8 on. Frame 0 is written.
fn walk(code: &mut Assembler) {
    code.set(Reg::R9, 1)
        .label(ON)
        .if_zero(Reg::R8, WALKED)
        .copy(Reg::R1, Reg::R10)
        .add(Reg::R1, PAIR.into())
        .set(Reg::R2, 16)
        .copy(Reg::R3, Reg::R8)
        .call(helper::COPY_FROM_USER)
        .unless(Reg::R0, 0, WALKED)
        .load(Reg::R8, Reg::R10, PAIR)
        .load(Reg::R1, Reg::R10, PAIR + 8)
        .copy(Reg::R2, Reg::R9)
        .shift_left(Reg::R2, 3)
        .plus(Reg::R2, Reg::R7)
        .store(Reg::R2, word(RESULT_HEAD), Reg::R1)
        .add(Reg::R9, 1)
        .unless(Reg::R9, MOST_FRAMES, ON)
        .label(WALKED)
        .store(Reg::R7, word(result::FRAMES), Reg::R9);
}

/// Writes the result where the event is, and takes the nonce away.
fn at_once(code: &mut Assembler) {
    slot(code);
    // R7 is the pending nonce, and the caller wants it back.
    code.store(Reg::R10, PAGE, Reg::R7)
        .copy(Reg::R7, Reg::R0)
        .load(Reg::R1, Reg::R8, word(request::NONCE))
        .store(Reg::R7, word(result::NONCE), Reg::R1)
        .load_half(Reg::R1, Reg::R8, word(request::TASK))
        .store(Reg::R7, word(result::TID), Reg::R1)
        .copy(Reg::R1, Reg::R6);
    get_stack(code, helper::GET_STACK);
    code.load(Reg::R1, Reg::R7, word(RESULT_HEAD))
        .store(Reg::R7, word(result::IP), Reg::R1)
        .store_value(Reg::R7, word(result::DONE), 1)
        .load(Reg::R7, Reg::R10, PAGE)
        .store_value(Reg::R7, 0, 0)
        .label(NO_SLOT)
        .set(Reg::R0, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_a_program_and_only_task_work_has_a_callback() {
        for (stack, schedule, callbacks) in [
            (BpfStack::AtOnce, None, 0),
            (BpfStack::TaskWork, Some(7), 1),
            (BpfStack::OwnWalk, Some(7), 1),
        ] {
            let code = code(stack, schedule).unwrap();
            assert_eq!(code.functions.len(), callbacks, "{stack:?}");
            let results = code.maps.iter().filter(|(_, map)| *map == RESULTS);
            assert_eq!(results.count(), 2, "{stack:?}");
            let known = |name| maps().iter().any(|it| it.name == name);
            assert!(code.maps.iter().all(|(_, name)| known(*name)), "{stack:?}");
        }
    }
}
