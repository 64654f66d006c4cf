//! The instructions by which a kernel returns to user mode, and the plan of the witness that notes
//! what was written by then.
//!
//! Linux returns from its entry text only (`.entry.text`, from `__entry_text_start` to
//! `__entry_text_end`): by `sysretq` of `entry_SYSCALL_64`, by `sysretl` of the compat entries, and
//! by the `iretq` of `common_interrupt_return`, to which interrupts, exceptions, `int 0x80`,
//! signals, new tasks (`ret_from_fork_asm`) and NMIs from user mode jump, and system calls that
//! cannot use `sysret` (arch/x86/entry/entry_64.S and entry_64_compat.S, Linux 7.3). The `iretq`s
//! between the labels of `asm_exc_nmi` return to the kernel only: an NMI from user mode leaves by
//! `swapgs_restore_regs_and_return_to_usermode`.

use iced_x86::{Code, Decoder, DecoderOptions};
use unwindlab_engine::plan::WitnessPlan;

use super::resolve::KernelSymbols;

const BEGIN: &str = "__entry_text_start";
const END: &str = "__entry_text_end";
/// Longest entry text that is searched. That of Debian's 7.3 has 8 KiB.
const LONGEST: u64 = 1 << 20;
/// The labels of the handler of NMIs have this in their names, others do not.
const NMI: &str = "nmi";

/// Most returns that are noted unless the scenario says that it wants the witness.
const MOST_BY_DEFAULT: u32 = 20_000;
/// Most returns that are noted where it says so.
const MOST: u32 = 1 << 20;

/// The plan of a scenario that says `wanted`; none where the witness is off, or the kernel does not
/// say where its entry text is. Where a trial leaves no records, a note would tell nothing.
pub(super) fn plan(
    wanted: Option<bool>,
    leaves_records: bool,
    symbols: &dyn KernelSymbols,
) -> Option<WitnessPlan> {
    let most = match wanted {
        Some(true) => MOST,
        None if leaves_records => MOST_BY_DEFAULT,
        None | Some(false) => return None,
    };
    let sites = sites(symbols);
    (!sites.is_empty()).then_some(WitnessPlan {
        sites,
        most,
        // Without type information the workload's own threads tell where it is, where they can.
        task_pid: symbols
            .member("task_struct", "pid")
            .ok()
            .map(|it| it.offset),
    })
}

/// The addresses of the instructions, in order.
fn sites(symbols: &dyn KernelSymbols) -> Vec<u64> {
    let (&[begin], &[end]) = (
        symbols.addresses(BEGIN).as_slice(),
        symbols.addresses(END).as_slice(),
    ) else {
        return Vec::new();
    };
    let Some(length) = end.checked_sub(begin).filter(|it| *it <= LONGEST) else {
        return Vec::new();
    };
    let length = usize::try_from(length).unwrap_or_default();
    let Some(code) = symbols.code(begin, length) else {
        return Vec::new();
    };
    let label = |address| symbols.resolve(address);
    let mut decoder = Decoder::with_ip(64, &code, begin, DecoderOptions::NONE);
    let mut sites = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        // What is decoded across a label was data or padding: the label is where code begins.
        let next = instruction.next_ip();
        if let Some((_, past @ 1..)) = label(next)
            && past < instruction.len() as u64
        {
            let at = next.saturating_sub(past).saturating_sub(begin);
            let at = usize::try_from(at).unwrap_or(code.len());
            if decoder.set_position(at).is_err() {
                break;
            }
            decoder.set_ip(begin.saturating_add(at as u64));
            continue;
        }
        let returns = matches!(
            instruction.code(),
            Code::Sysretq | Code::Sysretd | Code::Iretq
        );
        let of_nmi = || label(instruction.ip()).is_some_and(|(name, _)| name.contains(NMI));
        if returns && !of_nmi() {
            sites.push(instruction.ip());
        }
    }
    sites
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ffff_8200_0000;

    /// An entry text, with its labels.
    struct Entries {
        code: &'static [u8],
        labels: &'static [(&'static str, u64)],
    }

    impl KernelSymbols for Entries {
        fn addresses(&self, name: &str) -> Vec<u64> {
            match name {
                BEGIN => vec![BASE],
                END => vec![BASE + self.code.len() as u64],
                _ => Vec::new(),
            }
        }
        fn size(&self, _: &str) -> Option<u64> {
            None
        }
        fn similar(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
        fn current_task_offset(&self) -> Option<u64> {
            None
        }
        fn resolve(&self, address: u64) -> Option<(String, u64)> {
            let before = |(_, at): &&(&str, u64)| BASE + at <= address;
            let (name, at) = self.labels.iter().rev().find(before)?;
            Some(((*name).to_owned(), address - BASE - at))
        }
        fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
            assert_eq!((address, length), (BASE, self.code.len()));
            Some(self.code.to_vec())
        }
    }

    #[test]
    fn returns_are_found_but_those_of_nmis() {
        let entries = Entries {
            // sysretq; int3; sysretl; iretq; a mov that has iretq's bytes in it; a byte of a
            // longer instruction, then iretq at a label.
            code: &[
                0x48, 0x0f, 0x07, 0xcc, 0x0f, 0x07, 0x48, 0xcf, 0xb8, 0x48, 0xcf, 0, 0, 0xe8, 0x48,
                0xcf, 0x90, 0x90, 0x90,
            ],
            labels: &[
                ("entry_SYSCALL_64", 0),
                ("end_repeat_nmi", 6),
                ("native_irq_return_iret", 14),
            ],
        };
        assert_eq!(sites(&entries), [BASE, BASE + 4, BASE + 14]);
        let most = |wanted, records| plan(wanted, records, &entries).map(|it| it.most);
        assert_eq!(most(Some(false), true), None);
        assert_eq!(most(None, true), Some(MOST_BY_DEFAULT));
        assert_eq!(most(None, false), None);
        assert_eq!(most(Some(true), false), Some(MOST));
    }

    #[test]
    fn without_entry_text_there_is_no_witness() {
        let nothing = Entries {
            code: &[],
            labels: &[],
        };
        assert_eq!(plan(Some(true), true, &nothing), None);
    }
}
