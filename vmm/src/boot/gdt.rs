//! The first vCPU's segments and control registers: 64-bit mode, as the Linux boot protocol
//! requires (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").

use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};

use super::{GDT, PAGE_TABLES, STACK, ZERO_PAGE};
use crate::memory::{AccessError, Memory};
use crate::x86::{CR0_PAGING, EFER_LONG_MODE_ACTIVE};

/// Descriptors: two empty ones, code (selector 0x10), data (0x18), TSS (0x20, two entries).
const DESCRIPTORS: [u64; 6] = [0, 0, CODE, DATA, TSS, 0];
const CODE: u64 = 0x00af_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;
const TSS: u64 = 0x008f_8b00_0000_ffff;
const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
const TSS_SELECTOR: u16 = 0x20;

const CR0_PROTECTED: u64 = 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE_ENABLE: u64 = 1 << 8;
/// RFLAGS: only the bit that is always set, so interrupts are off.
const RFLAGS: u64 = 2;

/// The offset of the table's last byte.
#[expect(clippy::cast_possible_truncation, reason = "six descriptors")]
const LIMIT: u16 = size_of_val(&DESCRIPTORS) as u16 - 1;

/// The first vCPU's registers at the kernel's entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BootState {
    regs: kvm_regs,
}

/// The registers for a kernel with this entry.
pub(super) fn boot_state(entry: u64) -> BootState {
    BootState {
        regs: kvm_regs {
            rip: entry,
            rsi: ZERO_PAGE,
            rsp: STACK,
            rbp: STACK,
            rflags: RFLAGS,
            ..Default::default()
        },
    }
}

/// Writes the descriptor table.
pub(super) fn write(memory: &Memory) -> Result<(), AccessError> {
    (GDT..)
        .step_by(8)
        .zip(DESCRIPTORS)
        .try_for_each(|(at, entry)| memory.store_u64(at, entry))
}

impl BootState {
    /// The general registers.
    pub(crate) fn regs(&self) -> kvm_regs {
        self.regs
    }

    /// The system registers, based on those after reset.
    pub(crate) fn sregs(&self, reset: kvm_sregs) -> kvm_sregs {
        let data = segment(DATA, DATA_SELECTOR);
        kvm_sregs {
            cs: segment(CODE, CODE_SELECTOR),
            ds: data,
            es: data,
            fs: data,
            gs: data,
            ss: data,
            tr: segment(TSS, TSS_SELECTOR),
            gdt: kvm_dtable {
                base: GDT,
                limit: LIMIT,
                ..Default::default()
            },
            idt: kvm_dtable::default(),
            cr0: CR0_PROTECTED | CR0_EXTENSION_TYPE | CR0_PAGING,
            cr3: PAGE_TABLES,
            cr4: CR4_PHYSICAL_ADDRESS_EXTENSION,
            efer: EFER_LONG_MODE_ENABLE | EFER_LONG_MODE_ACTIVE,
            ..reset
        }
    }
}

/// The cached form of a descriptor with base 0.
fn segment(descriptor: u64, selector: u16) -> kvm_segment {
    let [limit_low, limit_middle, .., access, flags, _] = descriptor.to_le_bytes();
    let limit = u32::from_le_bytes([limit_low, limit_middle, flags & 0xf, 0]);
    let granularity = flags >> 7;
    kvm_segment {
        base: 0,
        limit: match granularity {
            0 => limit,
            _ => limit << 12 | 0xfff,
        },
        selector,
        type_: access & 0xf,
        s: access >> 4 & 1,
        dpl: access >> 5 & 3,
        present: access >> 7,
        avl: flags >> 4 & 1,
        l: flags >> 5 & 1,
        db: flags >> 6 & 1,
        g: granularity,
        unusable: 0,
        padding: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_cached_as_the_cpu_does() {
        let code = segment(CODE, CODE_SELECTOR);
        assert_eq!(
            (code.limit, code.type_, code.s, code.present),
            (u32::MAX, 11, 1, 1)
        );
        assert_eq!((code.l, code.db, code.g, code.dpl), (1, 0, 1, 0));
        let data = segment(DATA, DATA_SELECTOR);
        assert_eq!(
            (data.limit, data.type_, data.l, data.db),
            (u32::MAX, 3, 0, 1)
        );
        assert_eq!(segment(TSS, TSS_SELECTOR).s, 0);
    }
}
