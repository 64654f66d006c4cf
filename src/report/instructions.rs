//! A part of a path, instruction by instruction, in the syntax of `objdump -d` (AT&T).

use std::fmt::Write as _;

use iced_x86::{Decoder, DecoderOptions, Formatter as _, GasFormatter, Instruction};

use super::names::Names;
use unwindlab_engine::plan::sweep::Step;
use unwindlab_engine::text::printable;

/// The longest x86 instruction.
pub(super) const LONGEST: usize = 15;
/// Width of the column with the names.
const NAMES: usize = 40;

/// Up to `count` instructions before and after a boundary of a path. Each line has the number, the
/// place, the instruction, and the line of the source if the kernel has DWARF.
#[must_use]
pub fn around(path: &[Step], number: u32, count: u32, names: Names<'_>) -> String {
    let mut out = String::new();
    let from = number.saturating_sub(count);
    let to = number.saturating_add(count).saturating_add(1);
    let steps = (0_u32..).zip(path);
    for (at, step) in steps.filter(|(at, _)| (from..to).contains(at)) {
        let mark = if at == number { '>' } else { ' ' };
        let name = names.name(step.rip);
        let code = names.kernel.code(step.rip, LONGEST);
        let code = code.map_or_else(
            || "?".to_owned(),
            |code| instruction(&code, step.rip, names),
        );
        let line = names.kernel.lines().and_then(|lines| {
            let at = lines.at(step.rip);
            at.first()
                .map(|(file, line)| format!("  # {}:{line}", printable(file)))
        });
        let line = line.unwrap_or_default();
        let _ = writeln!(out, "  {mark} {at:>6} {name:<NAMES$} {code}{line}");
    }
    out
}

pub(super) fn instruction(code: &[u8], rip: u64, names: Names<'_>) -> String {
    let decoded = Decoder::with_ip(64, code, rip, DecoderOptions::NONE).decode();
    text(&decoded, names)
}

/// One instruction; a branch with the name of its target.
pub(super) fn text(decoded: &Instruction, names: Names<'_>) -> String {
    if decoded.is_invalid() {
        return "(bad)".to_owned();
    }
    let mut text = String::new();
    let mut formatter = GasFormatter::new();
    formatter.options_mut().set_uppercase_hex(false);
    formatter.format(decoded, &mut text);
    match decoded.near_branch_target() {
        0 => text,
        target => format!("{text} <{}>", names.name(target)),
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_engine::plan::sweep::Reach;

    use super::*;
    use unwindlab_scenario::KernelSymbols;

    /// A kernel of one function: `nop`, `jmp` to itself, and a byte that is no instruction.
    struct Kernel;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    impl KernelSymbols for Kernel {
        fn addresses(&self, _: &str) -> Vec<u64> {
            vec![BASE]
        }
        fn size(&self, _: &str) -> Option<u64> {
            Some(8)
        }
        fn similar(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
        fn current_task_offset(&self) -> Option<u64> {
            None
        }
        fn resolve(&self, address: u64) -> Option<(String, u64)> {
            Some(("f".to_owned(), address.checked_sub(BASE)?))
        }
        fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
            let code = [0x90, 0xeb, 0xfe, 0x06];
            let from = usize::try_from(address.checked_sub(BASE)?).ok()?;
            Some(code.get(from..)?.iter().take(length).copied().collect())
        }
    }

    fn listed(number: u32, count: u32) -> String {
        let step = |offset| Step {
            rip: BASE + offset,
            task: 1,
            user: false,
            reach: Reach::Stepped,
            local: false,
            clock: None,
        };
        let path = [step(0), step(1), step(1), step(3), step(9)];
        let names = Names {
            kernel: &Kernel,
            user: &[],
        };
        around(&path, number, count, names)
    }

    #[test]
    fn the_boundary_is_marked_and_its_neighbours_are_shown() {
        let text = listed(1, 1);
        let lines: Vec<&str> = text.lines().collect();
        let [before, here, behind] = lines.as_slice() else {
            panic!("{text}");
        };
        assert!(
            before.starts_with("         0 f+0x0 ") && before.ends_with(" nop"),
            "{text}"
        );
        assert!(here.starts_with("  >      1 f+0x1 "), "{text}");
        assert!(here.contains("jmp") && here.ends_with("<f+0x1>"), "{text}");
        assert!(behind.starts_with("         2 "), "{text}");
    }

    #[test]
    fn what_is_no_instruction_is_said_to_be_none() {
        let text = listed(4, u32::MAX);
        assert_eq!(text.lines().count(), 5);
        assert!(text.contains("(bad)"), "{text}");
        assert!(text.trim_end().ends_with('?'), "{text}");
    }
}
