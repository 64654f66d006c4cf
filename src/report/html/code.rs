//! The instructions around the one that an NMI interrupted, and how often NMIs hit each.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions};
use serde::Serialize;

use crate::report::instructions::text;
use crate::report::names::Names;
use unwindlab_engine::text::printable;
use unwindlab_oracle::trace::Trace;

/// Instructions that are shown before and after the place.
const AROUND: usize = 9;
/// A function is decoded from its beginning; the part of a longer one that is far behind it is not shown.
const LONGEST_FUNCTION: u64 = 1 << 16;

/// NMIs by the kernel instruction that they interrupted.
pub(super) type Hits = BTreeMap<u64, u32>;

/// A part of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Code {
    /// Its name.
    function: String,
    rows: Vec<Row>,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Row {
    /// Where in the function.
    offset: String,
    text: String,
    /// The line of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// NMIs that interrupted it.
    hits: u32,
    /// It is the place.
    here: bool,
}

/// The code around a kernel address; `None` where the kernel's image does not show it.
pub(super) fn around(address: u64, hits: &Hits, names: Names<'_>) -> Option<Code> {
    let (function, offset) = names.kernel.resolve(address)?;
    if offset > LONGEST_FUNCTION {
        return None;
    }
    let begin = address.checked_sub(offset)?;
    let length = usize::try_from(offset).ok()? + AROUND * 15;
    let bytes = names.kernel.code(begin, length)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut place = None;
    for decoded in Decoder::with_ip(64, &bytes, begin, DecoderOptions::NONE) {
        let at = decoded.ip();
        let is_of_it = names
            .kernel
            .resolve(at)
            .is_some_and(|(name, _)| name == function);
        if place.is_some_and(|place| rows.len() > place + AROUND) || !is_of_it {
            break;
        }
        if at == address {
            place = Some(rows.len());
        }
        rows.push(Row {
            offset: format!("+{:#x}", at - begin),
            text: text(&decoded, names),
            source: line(at, names),
            hits: hits.get(&at).copied().unwrap_or(0),
            here: at == address,
        });
    }
    let first = place?.saturating_sub(AROUND);
    Some(Code {
        function: printable(&function),
        rows: rows.split_off(first),
    })
}

/// `kernel/unwind/deferred.c:120`, where the kernel has DWARF.
pub(super) fn line(address: u64, names: Names<'_>) -> Option<String> {
    let lines = names.kernel.lines()?;
    let (file, line) = lines.at(address).first().copied()?;
    Some(format!("{}:{line}", printable(file)))
}

/// What the NMIs of a trace interrupted.
pub(super) fn hits(trace: &Trace, interrupted: impl Fn(usize) -> Option<u64>) -> Hits {
    let mut hits = Hits::new();
    let of_log = trace.lab.iter().flat_map(|lab| &lab.events);
    let of_log = of_log.filter_map(|event| event.interrupted());
    let of_perf = (0..trace.events.len()).filter_map(interrupted);
    for address in of_perf.chain(of_log) {
        let count = hits.entry(address).or_default();
        *count = count.saturating_add(1);
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_scenario::KernelSymbols;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    /// A function of 30 `jmp` to themselves, and another behind it.
    struct Kernel;

    impl KernelSymbols for Kernel {
        fn addresses(&self, _: &str) -> Vec<u64> {
            vec![BASE]
        }
        fn size(&self, _: &str) -> Option<u64> {
            Some(60)
        }
        fn similar(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
        fn current_task_offset(&self) -> Option<u64> {
            None
        }
        fn resolve(&self, address: u64) -> Option<(String, u64)> {
            let offset = address.checked_sub(BASE)?;
            match offset < 60 {
                true => Some(("f".to_owned(), offset)),
                false => Some(("g".to_owned(), offset - 60)),
            }
        }
        fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
            let from = usize::try_from(address.checked_sub(BASE)?).ok()?;
            let bytes = [0xeb, 0xfe].repeat(60);
            Some(bytes.get(from..)?.iter().take(length).copied().collect())
        }
    }

    fn offsets(address: u64) -> Option<Vec<String>> {
        let names = Names::of(&Kernel, None);
        let code = around(BASE + address, &Hits::from([(BASE + 20, 3)]), names)?;
        let row = |row: &Row| {
            let here = if row.here { "!" } else { "" };
            format!("{}{here}:{}", row.offset, row.hits)
        };
        assert!(
            code.rows.iter().all(|it| it.text.contains("jmp")),
            "{code:?}"
        );
        Some(code.rows.iter().map(row).collect())
    }

    #[test]
    fn the_place_is_marked_in_its_function() {
        let shown = offsets(20).unwrap();
        assert_eq!(shown.len(), 2 * AROUND + 1);
        assert_eq!(
            (shown[0].as_str(), shown[AROUND].as_str()),
            ("+0x2:0", "+0x14!:3")
        );
        // What is behind the function is another's.
        let last = offsets(58).unwrap();
        assert_eq!(last.last().unwrap(), "+0x3a!:0");
        assert_eq!(offsets(0).unwrap()[0], "+0x0!:0");
    }

    #[test]
    fn a_place_inside_an_instruction_is_not_guessed() {
        assert_eq!(offsets(21), None);
        assert!(around(0, &Hits::new(), Names::of(&Kernel, None)).is_none());
    }
}
