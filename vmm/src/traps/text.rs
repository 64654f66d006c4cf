//! A trap in the guest's text: what it stands over, and putting it in and out.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::TRAP_PORT;
use crate::debug::BreakpointError;
use crate::machine::Machine;
use crate::memory::{Memory, as_usize};

/// `out imm8, al`.
const CODE: [u8; 2] = [0xe6, TRAP_PORT.to_le_bytes()[0]];
/// The longest x86 instruction.
const LONGEST: usize = 15;
/// The smallest page.
const PAGE: u64 = 4096;

/// What kind of instruction a breakpoint is for, in the order in which they are to have the CPU's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// No trap fits.
    OneByte,
    /// A kernel may write another one in its place: it does that to no-operations and to direct
    /// calls and jumps (static keys, ftrace), and complains about what it does not expect there.
    Changing,
    /// Any other.
    Plain,
}

/// A trap.
#[derive(Debug)]
pub(super) struct Trap {
    pub(super) address: u64,
    /// Where its bytes lie in guest-physical memory: the second may be in another page.
    physical: [u64; 2],
    original: [u8; 2],
}

impl Trap {
    /// The trap for an address, not put in yet. All vCPUs stand still.
    pub(super) fn at(address: u64, machine: &Machine) -> Result<Self, BreakpointError> {
        let physical = [
            machine.physical(address)?,
            machine.physical(address.wrapping_add(1))?,
        ];
        let mut trap = Self {
            address,
            physical,
            original: [0; 2],
        };
        trap.original = trap.bytes(&machine.memory)?;
        Ok(trap)
    }

    fn bytes(&self, memory: &Memory) -> Result<[u8; 2], BreakpointError> {
        let mut bytes = [0; 2];
        for (byte, at) in bytes.iter_mut().zip(self.physical) {
            let read = memory.read(at, std::slice::from_mut(byte));
            read.map_err(|_| self.unmapped())?;
        }
        Ok(bytes)
    }

    fn write(&self, memory: &Memory, bytes: [u8; 2]) -> Result<(), BreakpointError> {
        for (byte, at) in bytes.into_iter().zip(self.physical) {
            memory.write(at, &[byte]).map_err(|_| self.unmapped())?;
        }
        Ok(())
    }

    fn unmapped(&self) -> BreakpointError {
        BreakpointError::Unmapped {
            address: self.address,
        }
    }

    /// Writes `new` over `old`; where `new` is there already, nothing is done.
    fn replace(&self, memory: &Memory, old: [u8; 2], new: [u8; 2]) -> Result<(), BreakpointError> {
        match self.bytes(memory)? {
            found if found == old => self.write(memory, new),
            found if found == new => Ok(()),
            found => Err(BreakpointError::Changed {
                address: self.address,
                found,
                expected: old,
            }),
        }
    }

    /// Puts it in.
    pub(super) fn put_in(&self, memory: &Memory) -> Result<(), BreakpointError> {
        self.replace(memory, self.original, CODE)
    }

    /// Takes it out.
    pub(super) fn take_out(&self, memory: &Memory) -> Result<(), BreakpointError> {
        self.replace(memory, CODE, self.original)
    }

    /// Puts the original into bytes that were read at `address`.
    pub(super) fn hide(&self, address: u64, bytes: &mut [u8]) {
        for (at, original) in (self.address..).zip(self.original) {
            let offset = at.wrapping_sub(address);
            if offset < bytes.len() as u64
                && let Some(byte) = bytes.get_mut(as_usize(offset))
            {
                *byte = original;
            }
        }
    }
}

impl Machine {
    /// Where a virtual address leads by the tables of any vCPU; all stand still.
    fn physical(&self, address: u64) -> Result<u64, BreakpointError> {
        let stopped = self.vcpus.iter().filter_map(|slot| slot.stopped());
        let mut found = stopped.filter_map(|vcpu| vcpu.translate(address).ok()?);
        found.next().ok_or(BreakpointError::Unmapped { address })
    }

    /// What the instruction at an address is.
    pub(super) fn kind(&self, address: u64) -> Result<Kind, BreakpointError> {
        let mut code = [0; LONGEST];
        let in_page = as_usize(PAGE - address % PAGE).min(LONGEST);
        let (first, rest) = code.split_at_mut(in_page);
        let unmapped = |_| BreakpointError::Unmapped { address };
        let read = |address, bytes: &mut [u8]| {
            let physical = self.physical(address)?;
            self.memory.read(physical, bytes).map_err(unmapped)
        };
        read(address, first)?;
        // The instruction may end before a page that is not there.
        let next = address.wrapping_add(in_page as u64);
        let known = match rest.is_empty() || read(next, rest).is_err() {
            true if in_page < LONGEST => in_page,
            _ => LONGEST,
        };
        let known = code.get_mut(..known).unwrap_or_default();
        self.traps.hide(address, known);
        Ok(kind(
            &Decoder::with_ip(64, known, address, DecoderOptions::NONE).decode(),
        ))
    }
}

fn kind(instruction: &Instruction) -> Kind {
    let direct = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::UnconditionalBranch
    );
    match instruction.len() {
        _ if instruction.is_invalid() => Kind::OneByte,
        0 | 1 => Kind::OneByte,
        _ if direct || instruction.mnemonic() == Mnemonic::Nop => Kind::Changing,
        _ => Kind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: &[u8]) -> Kind {
        kind(&Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).decode())
    }

    #[test]
    fn instructions_are_told_by_what_a_trap_does_to_them() {
        assert_eq!(kind_of(&[0x55]), Kind::OneByte, "push rbp");
        assert_eq!(kind_of(&[0xc3, 0x90]), Kind::OneByte, "ret");
        assert_eq!(kind_of(&[0xcc, 0, 0]), Kind::OneByte, "int3: being patched");
        assert_eq!(kind_of(&[0xe8, 0]), Kind::OneByte, "cut off");
        assert_eq!(kind_of(&[0x0f, 0x1f, 0x44, 0, 0]), Kind::Changing, "nop");
        assert_eq!(kind_of(&[0xe8, 0, 0, 0, 0]), Kind::Changing, "call");
        assert_eq!(kind_of(&[0xeb, 0]), Kind::Changing, "jmp");
        assert_eq!(kind_of(&[0x74, 0]), Kind::Plain, "je");
        assert_eq!(kind_of(&[0x48, 0x89, 0xe5]), Kind::Plain, "mov rbp, rsp");
    }

    fn trap() -> (Memory, Trap) {
        let memory = Memory::new(4).unwrap();
        let trap = Trap {
            address: 0x5fff,
            physical: [0x1fff, 0x3000],
            original: [0x48, 0x89],
        };
        trap.write(&memory, trap.original).unwrap();
        (memory, trap)
    }

    #[test]
    fn a_trap_is_put_in_and_out_and_only_over_what_it_knows() {
        let (memory, trap) = trap();
        trap.put_in(&memory).unwrap();
        trap.put_in(&memory).unwrap();
        assert_eq!(trap.bytes(&memory).unwrap(), [0xe6, 0xf7]);
        trap.take_out(&memory).unwrap();
        trap.take_out(&memory).unwrap();
        assert_eq!(trap.bytes(&memory).unwrap(), [0x48, 0x89]);
        trap.put_in(&memory).unwrap();
        memory.write(0x3000, &[0xcc]).unwrap();
        let changed = trap.take_out(&memory).unwrap_err();
        assert!(
            matches!(
                changed,
                BreakpointError::Changed {
                    address: 0x5fff,
                    found: [0xe6, 0xcc],
                    ..
                }
            ),
            "{changed}"
        );
        assert_eq!(trap.bytes(&memory).unwrap(), [0xe6, 0xcc], "left alone");
    }

    #[test]
    fn a_trap_is_not_seen_by_who_reads_code() {
        let (_, trap) = trap();
        let read = |address, len| {
            let mut bytes = vec![0; len];
            trap.hide(address, &mut bytes);
            bytes
        };
        assert_eq!(read(0x5ffe, 4), [0, 0x48, 0x89, 0]);
        assert_eq!(read(0x5ff8, 8), [0, 0, 0, 0, 0, 0, 0, 0x48]);
        assert_eq!(read(0x6000, 2), [0x89, 0]);
        assert_eq!(read(0x6001, 2), [0, 0]);
        assert_eq!(read(0x5ff0, 15), [0; 15]);
    }
}
