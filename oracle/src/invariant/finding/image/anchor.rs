//! Anchors: instructions that are recognized by what they do to which field.

use iced_x86::{FlowControl, Instruction, MemorySize, Mnemonic, OpKind};
use serde::Deserialize;

use super::Fields;
use super::values::{Base, Place, State, Value, is_immediate};

/// An instruction by what it does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Anchor {
    /// A locked instruction on a field of a task.
    Exchange(TaskField),
    /// A read of a field of a task, not locked.
    Load(TaskField),
    /// A store of 0 to the whole field of a task.
    Clear(TaskField),
    /// A load of the number of a client's bit.
    LoadBit(Anything),
    /// A store of -1 to the number of a client's bit.
    MarkBit(Anything),
    /// A comparison of the number of a client's bit with 0.
    SignOfBit(Anything),
    /// A `bt` with an operand in memory, and the number of a client's bit for the bit.
    TestBit(Anything),
    /// Any `set` instruction: the result of a test becomes 0 or 1.
    Flag(Anything),
    /// A call of this function, or a jump to it.
    Call(String),
    /// A read of a byte behind the begin of an object: not of the stack, and of no variable of the kernel.
    ReadByte(Anything),
    /// An instruction with this number in it.
    Number(i64),
    /// A conditional jump by a comparison of signed numbers.
    SignedJump(Anything),
    /// The end of the function.
    Return(Anything),
}

/// The word that stands where an anchor has no more to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Anything {
    /// Any client's.
    Any,
}

/// A field of a task: of `task_struct::unwind_info`, or its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TaskField {
    /// `unwind_mask`.
    Mask,
    /// `id`.
    Id,
    /// `task_struct::thread_info.flags`, which the task begins with.
    Flags,
}

impl Anchor {
    /// Whether an instruction is it.
    pub fn is(
        &self,
        instruction: &Instruction,
        state: &State,
        fields: &Fields,
        address: &dyn Fn(&str) -> Option<u64>,
    ) -> bool {
        let place = || fields.task_field(instruction, state);
        let bit = || fields.values.is_work_bit(instruction, state);
        match self {
            Self::Exchange(field) => {
                instruction.has_lock_prefix() && place() == Some(*field) && is_long(instruction)
            }
            Self::Load(TaskField::Flags) => {
                let place = state.place(instruction);
                let flags = Place {
                    base: Base::Task,
                    offset: 0,
                };
                place == Some(flags) && is_long(instruction) && loads(instruction)
            }
            Self::Load(field) => {
                reads(instruction) && !instruction.has_lock_prefix() && place() == Some(*field)
            }
            Self::Clear(field) => {
                place() == Some(*field) && is_long(instruction) && clears(instruction, state)
            }
            Self::LoadBit(_) => {
                matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movsxd)
                    && instruction.op1_kind() == OpKind::Memory
                    && bit()
            }
            Self::MarkBit(_) => {
                let stored = stored(instruction, state);
                let all_ones = |number| number & 0xffff_ffff_i64 == 0xffff_ffff;
                stores(instruction) && bit() && stored.is_some_and(all_ones)
            }
            Self::SignOfBit(_) => compares_with_zero(instruction, state, bit()),
            Self::TestBit(_) => {
                instruction.mnemonic() == Mnemonic::Bt
                    && instruction.op0_kind() == OpKind::Memory
                    && instruction.op1_kind() == OpKind::Register
                    && state.get(instruction.op1_register()) == Value::WorkBit
            }
            Self::Flag(_) => matches!(
                instruction.mnemonic(),
                Mnemonic::Setne | Mnemonic::Sete | Mnemonic::Setb | Mnemonic::Setae
            ),
            Self::ReadByte(_) => {
                let behind = state.place(instruction).is_some_and(|it| it.offset > 0);
                behind && instruction.memory_size().size() == 1 && reads(instruction)
            }
            Self::Number(number) => (0..instruction.op_count()).any(|at| {
                is_immediate(instruction.op_kind(at))
                    && instruction.immediate(at).cast_signed() == *number
            }),
            Self::SignedJump(_) => matches!(
                instruction.mnemonic(),
                Mnemonic::Jl | Mnemonic::Jle | Mnemonic::Jg | Mnemonic::Jge
            ),
            Self::Return(_) => {
                let thunk =
                    || address("__x86_return_thunk") == Some(instruction.near_branch_target());
                instruction.flow_control() == FlowControl::Return
                    || instruction.mnemonic() == Mnemonic::Jmp
                        && instruction.op0_kind() == OpKind::NearBranch64
                        && thunk()
            }
            Self::Call(name) => {
                let direct = matches!(instruction.mnemonic(), Mnemonic::Call | Mnemonic::Jmp)
                    && instruction.op0_kind() == OpKind::NearBranch64;
                direct && address(name) == Some(instruction.near_branch_target())
            }
        }
    }
}

/// Offset of `unwind_info::id` from the mask: behind the cache's pointer and the task work
/// (include/linux/unwind_deferred_types.h, 7.2 and 7.3).
const ID: i64 = 0x20;

impl Fields {
    /// The field of a task that an instruction's memory operand is.
    fn task_field(&self, instruction: &Instruction, state: &State) -> Option<TaskField> {
        let place = state.place(instruction)?;
        match place.offset.checked_sub(self.mask?)? {
            0 => Some(TaskField::Mask),
            ID => Some(TaskField::Id),
            _ => None,
        }
    }
}

/// Whether a register-to-memory or immediate-to-memory move.
pub(super) fn stores(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov && instruction.op0_kind() == OpKind::Memory
}

fn loads(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Memory
}

fn reads(instruction: &Instruction) -> bool {
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let reads = |it: &iced_x86::UsedMemory| {
        use iced_x86::OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite};
        matches!(it.access(), Read | CondRead | ReadWrite | ReadCondWrite)
    };
    factory.info(instruction).used_memory().iter().any(reads)
}

/// What a store stores, if it is a constant.
pub(super) fn stored(instruction: &Instruction, state: &State) -> Option<i64> {
    match instruction.op1_kind() {
        OpKind::Register => match state.get(instruction.op1_register()) {
            Value::Constant(number) => Some(number),
            _ => None,
        },
        kind if is_immediate(kind) => Some(instruction.immediate(1).cast_signed()),
        _ => None,
    }
}

fn clears(instruction: &Instruction, state: &State) -> bool {
    let and = instruction.mnemonic() == Mnemonic::And && instruction.op0_kind() == OpKind::Memory;
    (stores(instruction) || and) && stored(instruction, state) == Some(0)
}

fn compares_with_zero(instruction: &Instruction, state: &State, bit: bool) -> bool {
    let held = |at: u32| {
        instruction.op_kind(at) == OpKind::Register
            && state.get(instruction.op_register(at)) == Value::WorkBit
    };
    let zero = is_immediate(instruction.op1_kind()) && stored(instruction, state) == Some(0);
    match instruction.mnemonic() {
        Mnemonic::Test => held(0) && held(1),
        Mnemonic::Cmp => zero && (held(0) || bit),
        _ => false,
    }
}

/// Whether the memory operand has 64 bits.
pub(super) fn is_long(instruction: &Instruction) -> bool {
    matches!(
        instruction.memory_size(),
        MemorySize::UInt64 | MemorySize::Int64
    )
}
