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
pub const MOST_BY_DEFAULT: u32 = 20_000;
/// Most returns that are noted where it says so.
pub const MOST: u32 = 1 << 20;

/// The plan of a scenario that says `wanted`; none where the witness is off, or the kernel does not
/// say where its entry text is. Where a trial leaves no records, a note would tell nothing.
#[must_use]
pub fn plan(
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

/// The addresses of the instructions, in order; none where the kernel does not say where its entry text is.
#[must_use]
pub fn sites(symbols: &dyn KernelSymbols) -> Vec<u64> {
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
