//! What registers hold, as far as the code of one function tells.
//!
//! Only what the anchors need: pointers to the current task, other pointers with an offset, the
//! number of a client's bit, and constants. Everything else is unknown, and what two paths disagree
//! about is unknown too: of two pointers equally far behind their bases, only the base.

use std::collections::BTreeMap;

use iced_x86::{
    Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register,
};

/// Where a pointer points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// The current task.
    Task,
    /// The function's first argument.
    Argument,
    /// What the instruction at this address loaded or computed.
    Site(u64),
    /// Something that is not known.
    Unknown,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing that is known.
    Unknown,
    /// A pointer: the base, plus so many bytes.
    Pointer(Base, i64),
    /// The number of a client's bit (`unwind_work::bit`).
    WorkBit,
    /// A constant.
    Constant(i64),
}

impl Value {
    /// What is known where one path brings this and another path `other`.
    fn both(self, other: Self) -> Self {
        match (self, other) {
            _ if self == other => self,
            // A loop has its object from another instruction at first than later.
            (Self::Pointer(_, offset), Self::Pointer(_, same)) if offset == same => {
                Self::Pointer(Base::Unknown, offset)
            }
            _ => Self::Unknown,
        }
    }
}

/// A place in memory that an instruction accesses: some bytes behind a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub base: Base,
    pub offset: i64,
}

/// What the 16 registers hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State([Value; 16]);

impl State {
    /// At the start of a function.
    pub fn at_entry() -> Self {
        let mut state = Self::unknown();
        state.set(Register::RDI, Value::Pointer(Base::Argument, 0));
        state
    }

    /// Nothing is known.
    pub fn unknown() -> Self {
        Self([Value::Unknown; 16])
    }

    /// What a register holds. Half a pointer is nothing that is known.
    pub fn get(&self, register: Register) -> Value {
        let whole = register.size() == 8;
        let value = slot(register).and_then(|at| self.0.get(at)).copied();
        match value {
            Some(value @ (Value::WorkBit | Value::Constant(_))) if register.size() >= 4 => value,
            Some(value) if whole => value,
            _ => Value::Unknown,
        }
    }

    fn set(&mut self, register: Register, value: Value) {
        if let Some(held) = slot(register).and_then(|at| self.0.get_mut(at)) {
            *held = value;
        }
    }

    /// Forgets what `other` does not hold too; says whether anything was forgotten.
    pub fn join(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (held, other) in self.0.iter_mut().zip(&other.0) {
            let both = held.both(*other);
            changed |= both != *held;
            *held = both;
        }
        changed
    }

    /// The place that an instruction's memory operand names; `None` for an indexed one, a variable
    /// of the kernel, the stack, or memory of the CPU.
    pub fn place(&self, instruction: &Instruction) -> Option<Place> {
        let base = instruction.memory_base();
        if instruction.memory_index() != Register::None
            || instruction.segment_prefix() != Register::None
            || matches!(base, Register::None | Register::RIP | Register::RSP)
        {
            return None;
        }
        let displacement = instruction.memory_displacement64().cast_signed();
        let (base, offset) = match self.get(base) {
            Value::Pointer(base, offset) => (base, offset),
            _ => (Base::Unknown, 0),
        };
        let offset = offset.checked_add(displacement)?;
        Some(Place { base, offset })
    }
}

fn slot(register: Register) -> Option<usize> {
    (register.is_gpr()).then(|| register.full_register().number())
}

/// What is known of the kernel beforehand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Values {
    /// Offset of the pointer to the running task from the CPU's GS base.
    pub current_task: Option<u64>,
    /// Offset of `unwind_work::bit`.
    pub work_bit: Option<i64>,
    /// Address of `__stack_chk_fail()`, which a kernel with the stack protector has: code of another
    /// path follows the call, from which it does not return.
    pub no_return: Option<u64>,
}

impl Values {
    /// What the registers hold after an instruction.
    pub fn after(&self, instruction: &Instruction, state: &State) -> State {
        let mut after = state.clone();
        let mut factory = InstructionInfoFactory::new();
        for used in factory.info(instruction).used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead) {
                after.set(used.register(), Value::Unknown);
            }
        }
        if matches!(instruction.mnemonic(), Mnemonic::Call) {
            for register in CLOBBERED {
                after.set(register, Value::Unknown);
            }
        } else if instruction.op0_kind() == OpKind::Register {
            let value = self.result(instruction, state);
            after.set(instruction.op0_register(), value);
            if !writes_first(instruction) {
                after.set(
                    instruction.op0_register(),
                    state.get(instruction.op0_register()),
                );
            }
        }
        if matches!(instruction.mnemonic(), Mnemonic::Cdqe) {
            after.set(Register::RAX, state.get(Register::EAX));
        }
        after
    }

    /// The registers that these instructions load with the running task and with nothing else, but
    /// for what they held before the function; called functions keep them.
    pub fn steady<'i>(&self, instructions: impl Iterator<Item = &'i Instruction>) -> State {
        let mut written: BTreeMap<usize, bool> = BTreeMap::new();
        let task = Value::Pointer(Base::Task, 0);
        let unknown = State::unknown();
        let loads = instructions.filter(|it| it.mnemonic() != Mnemonic::Pop);
        for instruction in loads {
            let after = self.after(instruction, &unknown);
            let mut factory = InstructionInfoFactory::new();
            for used in factory.info(instruction).used_registers() {
                let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                if let (false, Some(at)) = (reads, slot(used.register())) {
                    let is_task = after.get(used.register().full_register()) == task;
                    *written.entry(at).or_insert(true) &= is_task;
                }
            }
        }
        let mut state = State::unknown();
        for register in KEPT {
            if slot(register).and_then(|at| written.get(&at)) == Some(&true) {
                state.set(register, task);
            }
        }
        state
    }

    /// What an instruction leaves in its first operand.
    fn result(&self, instruction: &Instruction, state: &State) -> Value {
        let target = instruction.op0_register();
        match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Mov | Mnemonic::Movsxd, OpKind::Register) => {
                let value = state.get(instruction.op1_register());
                let pointer = matches!(value, Value::Pointer(..));
                if pointer && target.size() < 8 {
                    Value::Unknown
                } else {
                    value
                }
            }
            (Mnemonic::Mov | Mnemonic::Movsxd, OpKind::Memory) => self.loaded(instruction, state),
            (Mnemonic::Lea, OpKind::Memory) => address(instruction, state),
            (Mnemonic::Xor | Mnemonic::Sub, OpKind::Register)
                if target == instruction.op1_register() =>
            {
                Value::Constant(0)
            }
            (Mnemonic::Mov, kind) if is_immediate(kind) => {
                Value::Constant(instruction.immediate(1).cast_signed())
            }
            (Mnemonic::Add, kind) if is_immediate(kind) => {
                let add = instruction.immediate(1).cast_signed();
                match state.get(target) {
                    Value::Pointer(base, offset) if add >= 0 => {
                        Value::Pointer(base, offset.saturating_add(add))
                    }
                    _ => Value::Unknown,
                }
            }
            _ => Value::Unknown,
        }
    }

    fn loaded(&self, instruction: &Instruction, state: &State) -> Value {
        if instruction.segment_prefix() == Register::GS {
            let at = instruction.memory_displacement64();
            let task = Some(at) == self.current_task
                && matches!(instruction.memory_base(), Register::RIP | Register::None);
            return match task {
                true => Value::Pointer(Base::Task, 0),
                false => Value::Unknown,
            };
        }
        if self.is_work_bit(instruction, state) {
            return Value::WorkBit;
        }
        match instruction.op0_register().size() {
            8 if instruction.mnemonic() == Mnemonic::Mov => {
                Value::Pointer(Base::Site(instruction.ip()), 0)
            }
            _ => Value::Unknown,
        }
    }

    /// Whether an instruction's memory operand is the number of a client's bit.
    pub fn is_work_bit(&self, instruction: &Instruction, state: &State) -> bool {
        let word = matches!(
            instruction.memory_size(),
            MemorySize::UInt32 | MemorySize::Int32
        );
        let place = state.place(instruction);
        let there =
            place.is_some_and(|it| it.base != Base::Task && Some(it.offset) == self.work_bit);
        word && there
    }
}

fn address(instruction: &Instruction, state: &State) -> Value {
    // `container_of()`: what begins before a member is another object.
    let back = instruction.memory_displacement64().cast_signed() < 0;
    match state.place(instruction) {
        Some(Place { base, offset }) if !back && base != Base::Unknown => {
            Value::Pointer(base, offset)
        }
        Some(Place { offset, .. }) if !back => Value::Pointer(Base::Unknown, offset),
        _ => Value::Pointer(Base::Site(instruction.ip()), 0),
    }
}

pub(super) fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Whether an instruction writes its first operand.
fn writes_first(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    !matches!(
        factory.info(instruction).op0_access(),
        OpAccess::Read | OpAccess::CondRead | OpAccess::None
    )
}

/// Registers that a called function keeps, but for the frame pointer.
const KEPT: [Register; 5] = [
    Register::RBX,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// Registers that a called function may change.
const CLOBBERED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];
