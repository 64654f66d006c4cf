//! One trap: `out imm8, al` to a port without a device, over the first two bytes of an instruction.
//! The port says what it is for.
//!
//! It leaves the guest on every KVM, unlike a breakpoint instruction: the SVM that QEMU's TCG
//! emulates checks no intercept for `int3` and `int1`. `out dx, al` would need a single byte, but
//! DX may hold a port of KVM's own (interrupt controllers, timer), which it would write to. So an
//! instruction of one byte takes no trap: a trap over two instructions would also be hit halfway,
//! by code that enters at the second one.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use kvm_bindings::kvm_sregs;

use crate::memory::{Memory, Translation, as_usize, translate};
use crate::x86::LONGEST_INSTRUCTION;

/// `out imm8, al`, without the port.
const OUT: u8 = 0xe6;
/// Why a trap cannot be written or removed.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum TrapError {
    /// Nothing is mapped there, or no RAM.
    #[error("there is no code at {address:#x} in guest memory to plant a trap in")]
    Unmapped { address: u64 },
    /// The guest has written to a trap, or is writing to it.
    #[error(
        "the guest has changed the code at {address:#x}, where a trap was planted: found {found:02x?}, \
         expected {expected:02x?}"
    )]
    Changed {
        address: u64,
        found: [u8; 2],
        expected: [u8; 2],
    },
}

/// How well an instruction takes a trap. Those that take it worst get hardware breakpoints first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TrapFit {
    /// It has one byte: no trap fits.
    OneByte,
    /// The kernel may patch it: no-operations and direct calls and jumps (static keys, ftrace).
    /// It reports an error if it finds other bytes than it expects.
    Patchable,
    /// Any other instruction.
    Good,
}

/// A trap.
#[derive(Debug)]
pub(crate) struct Trap {
    pub(crate) address: u64,
    /// Guest-physical addresses of its bytes: the second may be in another page.
    physical: [u64; 2],
    original: [u8; 2],
    /// The `out`.
    code: [u8; 2],
}

impl Trap {
    /// The trap for a virtual address, whose two bytes have these guest-physical addresses. Does
    /// not write it yet. All vCPUs must be stopped.
    pub(crate) fn new(
        address: u64,
        physical: [u64; 2],
        port: u16,
        memory: &Memory,
    ) -> Result<Self, TrapError> {
        let [port, _] = port.to_le_bytes();
        let mut trap = Self {
            address,
            physical,
            original: [0; 2],
            code: [OUT, port],
        };
        trap.original = trap.bytes(memory)?;
        Ok(trap)
    }

    /// The trap for the code at a virtual address by these page tables, and that code. Does not
    /// write it yet. All vCPUs must be stopped.
    pub(crate) fn by_tables(
        address: u64,
        tables: &kvm_sregs,
        port: u16,
        memory: &Memory,
    ) -> Result<(Self, [u8; LONGEST_INSTRUCTION]), TrapError> {
        let physical = |address: u64| match translate(memory, tables, address) {
            Translation::To(physical) => Ok(physical),
            _ => Err(TrapError::Unmapped { address }),
        };
        let mut code = [0; LONGEST_INSTRUCTION];
        for (at, byte) in (address..).zip(&mut code) {
            // What is behind the last page of text is no part of the instruction.
            let Ok(physical) = physical(at) else { break };
            let read = memory.read(physical, std::slice::from_mut(byte));
            read.map_err(|_| TrapError::Unmapped { address })?;
        }
        let bytes = [physical(address)?, physical(address.wrapping_add(1))?];
        Ok((Self::new(address, bytes, port, memory)?, code))
    }

    fn bytes(&self, memory: &Memory) -> Result<[u8; 2], TrapError> {
        let mut bytes = [0; 2];
        for (byte, at) in bytes.iter_mut().zip(self.physical) {
            let read = memory.read(at, std::slice::from_mut(byte));
            read.map_err(|_| self.unmapped())?;
        }
        Ok(bytes)
    }

    fn write(&self, memory: &Memory, bytes: [u8; 2]) -> Result<(), TrapError> {
        for (byte, at) in bytes.into_iter().zip(self.physical) {
            memory.write(at, &[byte]).map_err(|_| self.unmapped())?;
        }
        Ok(())
    }

    fn unmapped(&self) -> TrapError {
        TrapError::Unmapped {
            address: self.address,
        }
    }

    /// Writes `new` over `old`, unless `new` is there already.
    fn replace(&self, memory: &Memory, old: [u8; 2], new: [u8; 2]) -> Result<(), TrapError> {
        match self.bytes(memory)? {
            found if found == old => self.write(memory, new),
            found if found == new => Ok(()),
            found => Err(TrapError::Changed {
                address: self.address,
                found,
                expected: old,
            }),
        }
    }

    /// The guest-physical addresses of its bytes, and these while it is written.
    pub(crate) fn planted(&self) -> impl Iterator<Item = (u64, u8)> {
        self.physical.into_iter().zip(self.code)
    }

    /// Writes the trap.
    pub(crate) fn put_in(&self, memory: &Memory) -> Result<(), TrapError> {
        self.replace(memory, self.original, self.code)
    }

    /// Writes the original bytes.
    pub(crate) fn take_out(&self, memory: &Memory) -> Result<(), TrapError> {
        self.replace(memory, self.code, self.original)
    }

    /// Replaces the trap by the original in `bytes`, which were read at `address`.
    pub(crate) fn hide(&self, address: u64, bytes: &mut [u8]) {
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

impl TrapFit {
    /// That of the instruction at `address`, which starts with `code`.
    pub(crate) fn of(code: &[u8], address: u64) -> Self {
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        let direct = matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::UnconditionalBranch
        );
        match instruction.len() {
            _ if instruction.is_invalid() => Self::OneByte,
            0 | 1 => Self::OneByte,
            _ if direct || instruction.mnemonic() == Mnemonic::Nop => Self::Patchable,
            _ => Self::Good,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(code: &[u8]) -> TrapFit {
        TrapFit::of(code, 0x1000)
    }

    #[test]
    fn one_byte_and_patchable_instructions_are_recognised() {
        assert_eq!(fit(&[0x55]), TrapFit::OneByte, "push rbp");
        assert_eq!(fit(&[0xc3, 0x90]), TrapFit::OneByte, "ret");
        assert_eq!(fit(&[0xcc, 0, 0]), TrapFit::OneByte, "int3: being patched");
        assert_eq!(fit(&[0xe8, 0]), TrapFit::OneByte, "cut off");
        assert_eq!(fit(&[0x0f, 0x1f, 0x44, 0, 0]), TrapFit::Patchable, "nop");
        assert_eq!(fit(&[0xe8, 0, 0, 0, 0]), TrapFit::Patchable, "call");
        assert_eq!(fit(&[0xeb, 0]), TrapFit::Patchable, "jmp");
        assert_eq!(fit(&[0x74, 0]), TrapFit::Good, "je");
        assert_eq!(fit(&[0x48, 0x89, 0xe5]), TrapFit::Good, "mov rbp, rsp");
    }

    fn trap() -> (Memory, Trap) {
        let memory = Memory::new(4).unwrap();
        let trap = Trap {
            address: 0x5fff,
            physical: [0x1fff, 0x3000],
            original: [0x48, 0x89],
            code: [0xe6, 0xf7],
        };
        trap.write(&memory, trap.original).unwrap();
        (memory, trap)
    }

    #[test]
    fn a_trap_is_put_in_and_out_only_over_the_expected_bytes() {
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
                TrapError::Changed {
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
    fn a_reader_of_code_does_not_see_a_trap() {
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
