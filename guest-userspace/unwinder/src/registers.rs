//! Registers of a frame, as far as they are known.

/// A register by its DWARF number (System V ABI, AMD64 supplement, figure 3.36).
#[repr(u16)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the registers' names")]
pub enum Register {
    Rax = 0,
    Rdx = 1,
    Rcx = 2,
    Rbx = 3,
    Rsi = 4,
    Rdi = 5,
    Rbp = 6,
    Rsp = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15,
    Rip = 16,
}

/// How many there are.
pub const COUNT: usize = 17;
/// Those that a function gives back to its caller as they were.
pub(crate) const PRESERVED: [u16; 6] = [3, 6, 12, 13, 14, 15];

/// Registers of a frame. Above the interrupted one not all of them are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    values: [Option<u64>; COUNT],
    ip: u64,
    sp: u64,
}

impl Registers {
    /// With instruction, stack and frame pointer: what every unwinder knows.
    #[must_use]
    pub fn new(ip: u64, sp: u64, fp: u64) -> Self {
        let values = [None; COUNT];
        Self { values, ip, sp }.with(Register::Rbp, fp)
    }

    /// All of them, by DWARF number.
    #[must_use]
    pub fn all(values: [u64; COUNT]) -> Self {
        let [.., sp, _, _, _, _, _, _, _, _, ip] = values;
        Self {
            values: values.map(Some),
            ip,
            sp,
        }
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, register: Register, value: u64) -> Self {
        self.set(register as u16, Some(value));
        self
    }

    /// The instruction pointer.
    #[must_use]
    pub const fn ip(&self) -> u64 {
        self.ip
    }

    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.sp
    }

    /// The frame pointer; `None` if an unwinder could not recover it.
    #[must_use]
    pub fn fp(&self) -> Option<u64> {
        self.get(Register::Rbp as u16)
    }

    /// A register by its DWARF number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<u64> {
        match number {
            16 => Some(self.ip),
            7 => Some(self.sp),
            _ => self.values.get(usize::from(number)).copied().flatten(),
        }
    }

    /// Sets a register by its DWARF number; instruction and stack pointer are always known.
    pub(crate) fn set(&mut self, number: u16, value: Option<u64>) {
        match (number, value) {
            (16, Some(value)) => self.ip = value,
            (7, Some(value)) => self.sp = value,
            (16 | 7, None) => {}
            _ => {
                if let Some(slot) = self.values.get_mut(usize::from(number)) {
                    *slot = value;
                }
            }
        }
    }
}
