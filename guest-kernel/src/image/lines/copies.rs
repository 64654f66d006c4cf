//! Which copy of its function an instruction belongs to. A function that is inlined in three places
//! and also exists by itself has four copies, and each of its lines begins four times.
//!
//! The innermost function around an address is not always the function of a row in the line table: a
//! call and the first line of the function inlined for it share an address. The function of a row is
//! therefore the one in its file that begins last before its line.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, Unit};

use super::programs::{FilesOfPrograms, Slice};
use super::row::Row;

/// A bound for hostile files, in which all functions could share one long list.
const MAX_RANGES: usize = 16 << 20;

/// Where a function is declared: file and line.
type Declared = (u32, u32);

/// A function, or a place where one is inlined.
struct FunctionCopy {
    /// The copy around it.
    parent: Option<usize>,
    declared: Option<Declared>,
}

/// All copies in a kernel.
#[derive(Default)]
pub(super) struct Copies {
    /// Each before those inside it.
    copies: Vec<FunctionCopy>,
    /// Their ranges of addresses: begin, number of the copy, end.
    ranges: Vec<(u64, usize, u64)>,
    /// The functions of each file by the lines at which they begin.
    functions: HashMap<u32, BTreeSet<u32>>,
}

impl Copies {
    /// Reads all units. Damaged parts are left out: a line may then seem to begin less often than it
    /// does.
    pub(super) fn read(&mut self, dwarf: &Dwarf<Slice<'_>>, programs: &FilesOfPrograms) {
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            if let Ok(unit) = dwarf.unit(header) {
                let _ = self.unit(dwarf, &unit, programs);
            }
        }
    }

    fn unit(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        unit: &Unit<Slice<'_>>,
        programs: &FilesOfPrograms,
    ) -> Result<(), gimli::Error> {
        let program = unit.line_program.as_ref();
        let program = program.and_then(|it| programs.get(&it.header().offset().0));
        let files = program.map(Vec::as_slice).unwrap_or_default();
        let first = self.copies.len();
        let mut declared: HashMap<usize, Declared> = HashMap::new();
        let mut origins: Vec<Option<usize>> = Vec::new();
        // The copies around the current entry, with their depths.
        let mut around: Vec<(isize, usize)> = Vec::new();
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            if !matches!(
                entry.tag(),
                gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine
            ) {
                continue;
            }
            let own = declaration(entry, files);
            if let Some(own) = own {
                declared.insert(entry.offset().0, own);
                self.functions.entry(own.0).or_default().insert(own.1);
            }
            while around
                .last()
                .is_some_and(|(depth, _)| *depth >= entry.depth())
            {
                around.pop();
            }
            let number = self.copies.len();
            if self.ranges_of(dwarf, unit, entry, number)? {
                self.copies.push(FunctionCopy {
                    parent: around.last().map(|(_, number)| *number),
                    declared: own,
                });
                origins.push(origin(entry));
                around.push((entry.depth(), number));
            }
        }
        let made = self.copies.get_mut(first..).unwrap_or_default();
        for (copy, origin) in made.iter_mut().zip(origins) {
            let known = origin.and_then(|origin| declared.get(&origin)).copied();
            copy.declared = known.or(copy.declared);
        }
        Ok(())
    }

    /// Records the addresses of an entry; returns whether it has code.
    fn ranges_of(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        unit: &Unit<Slice<'_>>,
        entry: &DebuggingInformationEntry<Slice<'_>>,
        number: usize,
    ) -> Result<bool, gimli::Error> {
        let before = self.ranges.len();
        let value = |name| entry.attr_value(name);
        if let Some(list) = value(gimli::DW_AT_ranges) {
            if let Some(mut list) = dwarf.attr_ranges(unit, list)? {
                while let Some(range) = list.next()? {
                    self.add(range.begin, range.end, number);
                }
            }
        } else if let (Some(low), Some(high)) =
            (value(gimli::DW_AT_low_pc), value(gimli::DW_AT_high_pc))
            && let Some(low) = dwarf.attr_address(unit, low)?
        {
            let high = match high.udata_value() {
                Some(size) => Some(low.saturating_add(size)),
                None => dwarf.attr_address(unit, high)?,
            };
            self.add(low, high.unwrap_or(low), number);
        }
        Ok(self.ranges.len() > before)
    }

    fn add(&mut self, begin: u64, end: u64, number: usize) {
        if begin < end && self.ranges.len() < MAX_RANGES {
            self.ranges.push((begin, number, end));
        }
    }

    /// Sets the copy of each row. The rows are sorted by address.
    pub(super) fn mark(mut self, rows: &mut [Row]) {
        self.ranges.sort_unstable();
        let mut coming = self.ranges.iter().peekable();
        // The innermost, which was read last, is on top.
        let mut here: BinaryHeap<(usize, Reverse<u64>)> = BinaryHeap::new();
        for row in rows {
            while let Some((_, number, end)) = coming.next_if(|it| it.0 <= row.address) {
                here.push((*number, Reverse(*end)));
            }
            while here.peek().is_some_and(|(_, end)| end.0 <= row.address) {
                here.pop();
            }
            let innermost = here.peek().map(|(number, _)| *number);
            let copy = innermost.and_then(|it| u32::try_from(self.of(row, it)).ok());
            row.copy = copy.map_or(0, |copy| copy.saturating_add(1));
        }
    }

    /// Of the copies around a row, the one of the row's own function; else the outermost.
    fn of(&self, row: &Row, innermost: usize) -> usize {
        let begins = self.functions.get(&row.file);
        let begins = begins.and_then(|lines| lines.range(..=row.line).next_back());
        let own = begins.map(|line| (row.file, *line));
        let mut at = innermost;
        while let Some(copy) = self.copies.get(at) {
            if copy.declared.is_some() && copy.declared == own {
                return at;
            }
            match copy.parent {
                Some(parent) => at = parent,
                None => break,
            }
        }
        at
    }
}

fn declaration(entry: &DebuggingInformationEntry<Slice<'_>>, files: &[u32]) -> Option<Declared> {
    let number = |name| entry.attr_value(name)?.udata_value();
    let file = match entry.attr_value(gimli::DW_AT_decl_file)? {
        AttributeValue::FileIndex(file) => file,
        other => other.udata_value()?,
    };
    let file = *files.get(usize::try_from(file).ok()?)?;
    let line = u32::try_from(number(gimli::DW_AT_decl_line)?).ok()?;
    Some((file, line))
}

/// The entry of the unit that this one is a copy of.
fn origin(entry: &DebuggingInformationEntry<Slice<'_>>) -> Option<usize> {
    match entry.attr_value(gimli::DW_AT_abstract_origin)? {
        AttributeValue::UnitRef(offset) => Some(offset.0),
        _ => None,
    }
}
