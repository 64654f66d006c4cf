//! A small assembler of BPF instructions.

use std::collections::BTreeMap;

/// A register: R0 is a call's answer, R1 to R5 its arguments, R6 to R9 stay, R10 is the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reg {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
}

/// A place to jump to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label(pub u32);

/// One instruction, as `struct bpf_insn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// `src_reg` of a call of a kernel function (`BPF_PSEUDO_KFUNC_CALL`).
const KERNEL_FUNCTION: u8 = 2;
/// `src_reg` of the address of a function of the program (`BPF_PSEUDO_FUNC`).
const OWN_FUNCTION: u8 = 4;

/// Code in the making.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    labels: BTreeMap<Label, usize>,
    jumps: Vec<(usize, Label)>,
    maps: Vec<MapUse>,
    functions: Vec<(usize, Label)>,
}

/// Where code names a map: the byte offset of the instruction, and the map.
pub type MapUse = (u64, &'static str);

/// A whole program.
#[derive(Debug)]
pub struct Code {
    /// Its instructions.
    pub bytes: Vec<u8>,
    /// Where they name maps.
    pub maps: Vec<MapUse>,
    /// The first instructions of functions whose address is taken.
    pub functions: Vec<usize>,
}

impl Assembler {
    fn emit(&mut self, code: u8, to: Reg, from: u8, offset: i16, value: i32) -> &mut Self {
        let registers = to as u8 | from << 4;
        self.code.push(Instruction {
            code,
            registers,
            offset,
            value,
        });
        self
    }

    /// `to = from`.
    pub fn copy(&mut self, to: Reg, from: Reg) -> &mut Self {
        self.emit(0xbf, to, from as u8, 0, 0)
    }

    /// `to = value`.
    pub fn set(&mut self, to: Reg, value: i32) -> &mut Self {
        self.emit(0xb7, to, 0, 0, value)
    }

    /// `to += value`.
    pub fn add(&mut self, to: Reg, value: i32) -> &mut Self {
        self.emit(0x07, to, 0, 0, value)
    }

    /// `to += from`.
    pub fn plus(&mut self, to: Reg, from: Reg) -> &mut Self {
        self.emit(0x0f, to, from as u8, 0, 0)
    }

    /// `to |= from`.
    pub fn or(&mut self, to: Reg, from: Reg) -> &mut Self {
        self.emit(0x4f, to, from as u8, 0, 0)
    }

    /// `to <<= bits`.
    pub fn shift_left(&mut self, to: Reg, bits: i32) -> &mut Self {
        self.emit(0x67, to, 0, 0, bits)
    }

    /// `to >>= bits`, with the sign.
    pub fn shift_right_signed(&mut self, to: Reg, bits: i32) -> &mut Self {
        self.emit(0xc7, to, 0, 0, bits)
    }

    /// `to = *(u64 *)(from + offset)`.
    pub fn load(&mut self, to: Reg, from: Reg, offset: i16) -> &mut Self {
        self.emit(0x79, to, from as u8, offset, 0)
    }

    /// `to = *(u32 *)(from + offset)`.
    pub fn load_half(&mut self, to: Reg, from: Reg, offset: i16) -> &mut Self {
        self.emit(0x61, to, from as u8, offset, 0)
    }

    /// `*(u64 *)(to + offset) = from`.
    pub fn store(&mut self, to: Reg, offset: i16, from: Reg) -> &mut Self {
        self.emit(0x7b, to, from as u8, offset, 0)
    }

    /// `*(u32 *)(to + offset) = from`.
    pub fn store_half(&mut self, to: Reg, offset: i16, from: Reg) -> &mut Self {
        self.emit(0x63, to, from as u8, offset, 0)
    }

    /// `*(u64 *)(to + offset) = value`.
    pub fn store_value(&mut self, to: Reg, offset: i16, value: i32) -> &mut Self {
        self.emit(0x7a, to, 0, offset, value)
    }

    /// `*(u32 *)(to + offset) = value`.
    pub fn store_half_value(&mut self, to: Reg, offset: i16, value: i32) -> &mut Self {
        self.emit(0x62, to, 0, offset, value)
    }

    /// `from = atomic_fetch_add((u64 *)(to + offset), from)`.
    pub fn fetch_add(&mut self, to: Reg, offset: i16, from: Reg) -> &mut Self {
        self.emit(0xdb, to, from as u8, offset, 0x01)
    }

    /// `to = &map`.
    pub fn map(&mut self, to: Reg, map: &'static str) -> &mut Self {
        self.maps.push((self.code.len() as u64 * 8, map));
        self.emit(0x18, to, 0, 0, 0).emit(0, Reg::R0, 0, 0, 0)
    }

    /// `to` = the address of the function at the label, for a callback.
    pub fn function(&mut self, to: Reg, label: Label) -> &mut Self {
        self.functions.push((self.code.len(), label));
        self.emit(0x18, to, OWN_FUNCTION, 0, 0)
            .emit(0, Reg::R0, 0, 0, 0)
    }

    /// Calls a helper.
    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.emit(0x85, Reg::R0, 0, 0, helper)
    }

    /// Calls a kernel function by its id in the BTF.
    pub fn call_kernel(&mut self, id: i32) -> &mut Self {
        self.emit(0x85, Reg::R0, KERNEL_FUNCTION, 0, id)
    }

    /// Jumps if the register is 0.
    pub fn if_zero(&mut self, register: Reg, label: Label) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.emit(0x15, register, 0, 0, 0)
    }

    /// Jumps if the register is not the value.
    pub fn unless(&mut self, register: Reg, value: i32, label: Label) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.emit(0x55, register, 0, 0, value)
    }

    /// Jumps.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.emit(0x05, Reg::R0, 0, 0, 0)
    }

    /// The label is here.
    pub fn label(&mut self, label: Label) -> &mut Self {
        self.labels.insert(label, self.code.len());
        self
    }

    /// Ends the program.
    pub fn exit(&mut self) -> &mut Self {
        self.emit(0x95, Reg::R0, 0, 0, 0)
    }

    /// The program; `None` if a label is missing or too far away.
    #[must_use]
    pub fn finish(mut self) -> Option<Code> {
        for (from, label) in self.jumps {
            let to = *self.labels.get(&label)?;
            let offset = i16::try_from(to.checked_signed_diff(from + 1)?).ok()?;
            self.code.get_mut(from)?.offset = offset;
        }
        let mut functions = Vec::new();
        for (from, label) in self.functions {
            let to = *self.labels.get(&label)?;
            let value = i32::try_from(to.checked_signed_diff(from + 1)?).ok()?;
            self.code.get_mut(from)?.value = value;
            functions.push(to);
        }
        let bytes = self.code.iter().flat_map(|it| {
            let [a, b] = it.offset.to_le_bytes();
            let [c, d, e, f] = it.value.to_le_bytes();
            [it.code, it.registers, a, b, c, d, e, f]
        });
        Some(Code {
            bytes: bytes.collect(),
            maps: self.maps,
            functions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let end = Label(0);
        let mut code = Assembler::default();
        code.if_zero(Reg::R1, end).map(Reg::R2, "map");
        code.label(end).exit();
        let Code { bytes, maps, .. } = code.finish().unwrap();
        assert_eq!(bytes[..8], [0x15, 0x01, 2, 0, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), 4 * 8);
        assert_eq!(maps, [(8, "map")]);
    }

    #[test]
    fn a_function_counts_from_the_next_instruction() {
        let callback = Label(0);
        let mut code = Assembler::default();
        code.function(Reg::R4, callback).exit();
        code.label(callback).exit();
        let code = code.finish().unwrap();
        assert_eq!(code.bytes[..8], [0x18, 0x44, 0, 0, 2, 0, 0, 0]);
        assert_eq!(code.functions, [3]);
    }

    #[test]
    fn a_label_that_is_nowhere_is_no_program() {
        let mut code = Assembler::default();
        code.jump(Label(1)).exit();
        assert!(code.finish().is_none());
    }
}
