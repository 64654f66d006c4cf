//! By `.eh_frame`.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, EvaluationResult, EvaluationStorage,
    LittleEndian, Location, ParsedEhFrameHdr, Piece, Reader, ReaderOffset, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, Value,
};

use crate::image::Image;
use crate::memory::Stack;
use crate::registers::{COUNT, PRESERVED, Register, Registers};
use crate::walk::{At, Stop, Unwinder};

type Bytes = EndianSlice<'static, LittleEndian>;

/// Operations of one expression at most.
const MAX_OPERATIONS: u32 = 256;
const IP: u16 = Register::Rip as u16;
const SP: u16 = Register::Rsp as u16;

/// No heap. A row has a rule for each register at most, and glibc and compilers remember a row or two.
#[derive(Debug)]
struct OnStack;

impl<T: ReaderOffset> UnwindContextStorage<T> for OnStack {
    type Rules = [(gimli::Register, RegisterRule<T>); COUNT];
    type Stack = [UnwindTableRow<T, Self>; 4];
}

impl<R: Reader> EvaluationStorage<R> for OnStack {
    type Stack = [Value; 16];
    type ExpressionStack = [(R, R); 1];
    type Result = [Piece<R>; 1];
}

/// Follows the `.eh_frame` of a program.
#[derive(Debug)]
pub struct Dwarf {
    header: ParsedEhFrameHdr<Bytes>,
    frames: EhFrame<Bytes>,
    bases: BaseAddresses,
}

impl Dwarf {
    /// For a program. `None` if its `.eh_frame_hdr` is not one, or has no table to search in.
    #[must_use]
    pub fn new(image: &Image) -> Option<Self> {
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(image.header_address())
            .set_eh_frame(image.frames_address()?);
        let header = gimli::EhFrameHdr::new(image.header(), LittleEndian);
        let header = header.parse(&bases, 8).ok()?;
        header.table()?;
        let mut frames = EhFrame::new(image.frames()?, LittleEndian);
        frames.set_address_size(8);
        Some(Self {
            header,
            frames,
            bases,
        })
    }

    /// The caller's registers, by the rules for an address.
    fn caller(
        &self,
        registers: &Registers,
        address: u64,
        stack: &Stack,
    ) -> Result<(Registers, bool), Stop> {
        let table = self.header.table().ok_or(Stop::NotDescribed)?;
        let entry = table
            .fde_for_address(&self.frames, &self.bases, address, EhFrame::cie_from_offset)
            .map_err(|_| Stop::NotDescribed)?;
        let is_trampoline = entry.is_signal_trampoline();
        let encoding = entry.cie().encoding();
        let mut context = UnwindContext::<usize, OnStack>::new_in();
        let row = entry
            .unwind_info_for_address(&self.frames, &self.bases, &mut context, address)
            .map_err(|_| Stop::NotFollowed)?;
        let rules = Rules {
            dwarf: self,
            encoding,
            registers,
            stack,
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => rules
                .register(*register)?
                .checked_add_signed(*offset)
                .ok_or(Stop::OffStack)?,
            CfaRule::Expression(expression) => rules.evaluate(expression, None)?,
        };
        let ip = match row.register(gimli::Register(IP)) {
            None | Some(RegisterRule::Undefined) => return Err(Stop::Root),
            Some(rule) => rules.value(IP, rule, cfa)?.ok_or(Stop::Root)?,
        };
        let sp = match row.register(gimli::Register(SP)) {
            None => cfa,
            Some(rule) => rules.value(SP, rule, cfa)?.ok_or(Stop::NotFollowed)?,
        };
        let mut caller = Registers::new(ip, sp, 0);
        for number in 0..IP {
            let value = match row.register(gimli::Register(number)) {
                _ if number == SP => continue,
                None if PRESERVED.contains(&number) => registers.get(number),
                None => None,
                // What cannot be read is not known; only who needs it fails.
                Some(rule) => rules.value(number, rule, cfa).ok().flatten(),
            };
            caller.set(number, value);
        }
        Ok((caller, is_trampoline))
    }
}

impl Unwinder for Dwarf {
    fn step(&self, at: &mut At, stack: &Stack) -> Result<(), Stop> {
        let before = at.registers.sp();
        let (caller, is_trampoline) = self.caller(&at.registers, at.lookup(), stack)?;
        // Only a signal may have come on another stack.
        if caller.sp() <= before && (!is_trampoline || stack.is_one(caller.sp(), before)) {
            return Err(Stop::NotGrowing);
        }
        *at = At {
            registers: caller,
            // What a signal interrupted was not called.
            is_next: is_trampoline,
        };
        Ok(())
    }
}

/// The rules of one row, and what they are about.
struct Rules<'a> {
    dwarf: &'a Dwarf,
    encoding: gimli::Encoding,
    registers: &'a Registers,
    stack: &'a Stack,
}

impl Rules<'_> {
    fn register(&self, register: gimli::Register) -> Result<u64, Stop> {
        self.registers.get(register.0).ok_or(Stop::NotFollowed)
    }

    /// What a register of the caller has; `None` if the rule says that it is lost.
    fn value(&self, number: u16, rule: RegisterRule<usize>, cfa: u64) -> Result<Option<u64>, Stop> {
        let beside = |offset| cfa.checked_add_signed(offset).ok_or(Stop::OffStack);
        let read = |address| self.stack.word(address).ok_or(Stop::OffStack);
        Ok(Some(match rule {
            RegisterRule::Undefined => return Ok(None),
            RegisterRule::SameValue => return Ok(self.registers.get(number)),
            RegisterRule::Offset(offset) => read(beside(offset)?)?,
            RegisterRule::ValOffset(offset) => beside(offset)?,
            RegisterRule::Register(register) => self.register(register)?,
            RegisterRule::Expression(expression) => read(self.evaluate(&expression, Some(cfa))?)?,
            RegisterRule::ValExpression(expression) => self.evaluate(&expression, Some(cfa))?,
            _ => return Err(Stop::NotFollowed),
        }))
    }

    /// Evaluates an expression of `.eh_frame`; a register's begins with the CFA on its stack.
    fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        initial: Option<u64>,
    ) -> Result<u64, Stop> {
        let lost = |_| Stop::NotFollowed;
        let bytes = expression.get(&self.dwarf.frames).map_err(lost)?.0;
        let mut evaluation = gimli::Evaluation::<Bytes, OnStack>::new_in(bytes, self.encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut result = evaluation.evaluate().map_err(lost)?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.register(register)?);
                    evaluation.resume_with_register(value).map_err(lost)?
                }
                EvaluationResult::RequiresMemory {
                    address, size: 8, ..
                } => {
                    let value = self.stack.word(address).ok_or(Stop::OffStack)?;
                    evaluation
                        .resume_with_memory(Value::Generic(value))
                        .map_err(lost)?
                }
                _ => return Err(Stop::NotFollowed),
            };
        }
        match evaluation.as_result().last().map(|piece| &piece.location) {
            Some(Location::Address { address }) => Ok(*address),
            _ => Err(Stop::NotFollowed),
        }
    }
}
