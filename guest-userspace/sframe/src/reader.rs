//! What a section says of a stack: a reader that follows the specification and takes nothing for
//! granted. Where the specification does not say what a section means, it says that too.

#[cfg(test)]
mod tests;

use std::ops::Range;

/// Registers with which a walk begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// The instruction that comes next.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer. It must be no address that anything can be read at.
    pub fp: u64,
}

/// A registered section and the code that it was registered for.
#[derive(Debug, Clone)]
pub struct Registered<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Where it begins.
    pub address: u64,
    /// The code.
    pub text: Range<u64>,
}

/// Why a walk is not followed any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// There is no caller, or none can be found.
    End,
    /// What comes now is not said, or not known.
    Open,
}

/// The frames that a section says, innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// As far as they were followed.
    pub frames: Vec<u64>,
    /// Whether the walk ends there.
    pub ends: bool,
}

/// How the rows of a function find its caller.
#[derive(Debug, Clone, Copy)]
struct Found {
    of_stack_pointer: bool,
    cfa: i64,
    frame_pointer: Option<i64>,
    signal: bool,
}

const HEADER: u64 = 28;
/// More are not followed.
const FUNCTIONS: u64 = 4096;

/// Follows a section from these registers on, for at most `limit` frames. `memory` gives words of
/// the stack, and `None` where it does not know them.
#[must_use]
pub fn walk(
    section: &Registered<'_>,
    from: Registers,
    memory: &dyn Fn(u64) -> Option<u64>,
    limit: usize,
) -> Said {
    let mut now = from;
    let mut frames = vec![from.ip];
    let mut exact = true;
    while frames.len() < limit {
        match section.step(now, exact, from.fp, memory) {
            Ok((next, signal)) => {
                frames.push(next.ip);
                (now, exact) = (next, signal);
            }
            Err(stop) => {
                let ends = stop == Stop::End;
                return Said { frames, ends };
            }
        }
    }
    Said {
        frames,
        ends: false,
    }
}

impl Registered<'_> {
    fn step(
        &self,
        now: Registers,
        exact: bool,
        no_address: u64,
        memory: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<(Registers, bool), Stop> {
        let ip = now.ip.wrapping_sub(u64::from(!exact));
        let found = match self.find(ip)? {
            Some(found) => found,
            // No section: frame pointers, where there is one.
            None if now.fp == no_address => return Err(Stop::End),
            None => return Err(Stop::Open),
        };
        if !found.of_stack_pointer && now.fp == no_address {
            return Err(Stop::End);
        }
        let base = if found.of_stack_pointer {
            now.sp
        } else {
            now.fp
        };
        let cfa = base.wrapping_add_signed(found.cfa);
        if !cfa.is_multiple_of(8) || (!found.signal && cfa <= now.sp) {
            return Err(Stop::End);
        }
        let fixed = i64::from(self.byte(6)?.cast_signed());
        if fixed == 0 {
            return Err(Stop::Open);
        }
        let read = |offset: i64| memory(cfa.wrapping_add_signed(offset)).ok_or(Stop::Open);
        let fp = match found.frame_pointer {
            Some(offset) => read(offset)?,
            None => now.fp,
        };
        let next = Registers {
            ip: read(fixed)?,
            sp: cfa,
            fp,
        };
        Ok((next, found.signal))
    }

    /// The row of an instruction; `None` if no function covers it.
    fn find(&self, ip: u64) -> Result<Option<Found>, Stop> {
        if !self.text.contains(&ip) {
            return Ok(None);
        }
        let version = self.byte(2)?;
        let body = HEADER + u64::from(self.byte(7)?);
        let table = body + self.number(20, 4)?;
        let rows = body + self.number(24, 4)?;
        let rows_end = rows + self.number(16, 4)?;
        let relative = self.byte(3)? & 4 != 0;
        let size = if version == 2 { 20 } else { 16 };
        let count = self.number(8, 4)?;
        if count > FUNCTIONS {
            return Err(Stop::Open);
        }
        let mut covering = None;
        let mut last = None;
        for at in (0..count).map(|index| table + index * size) {
            let origin = self.address.wrapping_add(if relative { at } else { 0 });
            let start = if version == 2 {
                origin.wrapping_add_signed(signed(self.number(at, 4)?, 4))
            } else {
                origin.wrapping_add(self.number(at, 8)?)
            };
            // Which function is found then depends on the search.
            if last.is_some_and(|last| start <= last) {
                return Err(Stop::Open);
            }
            last = Some(start);
            if start <= ip {
                covering = Some((start, at));
            }
        }
        let Some((start, at)) = covering else {
            return Ok(None);
        };
        let entry = at + if version == 2 { 4 } else { 8 };
        if ip - start >= self.number(entry, 4)? {
            return Ok(None);
        }
        let function = Function {
            version,
            rows: rows + self.number(entry + 4, 4)?,
            entry,
            within: rows..rows_end,
        };
        self.row(&function, ip - start).map(Some)
    }

    fn row(&self, function: &Function, pc: u64) -> Result<Found, Stop> {
        let old = function.version == 2;
        // Number, info, type, size of a block, first row.
        let (number, info, kind, block, mut at) = if old {
            let from = function.entry + 8;
            let number = self.number(from, 4)?;
            let (info, block) = (self.byte(from + 4)?, self.byte(from + 5)?);
            (number, info & 0x7f, 0, block, function.rows)
        } else {
            let from = function.rows;
            function.holds(from, 5)?;
            let number = self.number(from, 2)?;
            let (info, kind) = (self.byte(from + 2)?, self.byte(from + 3)?);
            (number, info, kind & 0x1f, self.byte(from + 4)?, from + 5)
        };
        if number == 0 && !old && kind == 0 {
            return Err(Stop::End);
        }
        let pc = match (info & 0x10 != 0, u64::from(block)) {
            (true, 0) => return Err(Stop::End),
            (true, block) => pc % block,
            (false, _) => pc,
        };
        let wide = match info & 0xf {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return Err(Stop::End),
        };
        let mut row = None;
        let mut last = None;
        for _ in 0..number {
            function.holds(at, wide + 1)?;
            let start = self.number(at, wide)?;
            if last.is_some_and(|last| start <= last) {
                return Err(Stop::Open);
            }
            if start > pc {
                break;
            }
            last = Some(start);
            let info = self.byte(at + wide)?;
            row = Some((info, at + wide + 1));
            let words = u64::from(info >> 1 & 0xf);
            at += wide + 1 + words * word_size(info)?;
        }
        let (of_row, at) = row.ok_or(Stop::End)?;
        let signal = !old && info & 0x80 != 0;
        self.rules(function, kind, of_row, at, signal)
    }

    fn rules(
        &self,
        function: &Function,
        kind: u8,
        info: u8,
        at: u64,
        signal: bool,
    ) -> Result<Found, Stop> {
        let (count, size) = (u64::from(info >> 1 & 0xf), word_size(info)?);
        if count == 0 {
            return Err(Stop::End);
        }
        function.holds(at, count * size)?;
        // Flexible functions are not followed here.
        if kind != 0 || count > 2 {
            return Err(Stop::Open);
        }
        let cfa = signed(self.number(at, size)?, size);
        let fixed = i64::from(self.byte(5)?.cast_signed());
        let frame_pointer = match (count, fixed) {
            (1, 0) => None,
            (1, fixed) => Some(fixed),
            (_, 0) => Some(signed(self.number(at + size, size)?, size)),
            _ => return Err(Stop::Open),
        };
        Ok(Found {
            of_stack_pointer: info & 1 != 0,
            cfa,
            frame_pointer,
            signal,
        })
    }

    /// A number of so many bytes. A walk ends where the section does.
    fn number(&self, at: u64, size: u64) -> Result<u64, Stop> {
        let from = usize::try_from(at).map_err(|_| Stop::End)?;
        let to = usize::try_from(at.saturating_add(size)).map_err(|_| Stop::End)?;
        let bytes = self.bytes.get(from..to).ok_or(Stop::End)?;
        Ok(bytes.iter().rfold(0, |n, &byte| n << 8 | u64::from(byte)))
    }

    fn byte(&self, at: u64) -> Result<u8, Stop> {
        let at = usize::try_from(at).map_err(|_| Stop::End)?;
        self.bytes.get(at).copied().ok_or(Stop::End)
    }
}

/// A function that was found.
#[derive(Debug)]
struct Function {
    version: u8,
    rows: u64,
    /// Of its entry, behind the start.
    entry: u64,
    /// All rows of the section.
    within: Range<u64>,
}

impl Function {
    fn holds(&self, at: u64, size: u64) -> Result<(), Stop> {
        let inside = at >= self.within.start && at.saturating_add(size) <= self.within.end;
        inside.then_some(()).ok_or(Stop::End)
    }
}

fn word_size(info: u8) -> Result<u64, Stop> {
    match info >> 5 & 3 {
        3 => Err(Stop::End),
        code => Ok(1 << code),
    }
}

fn signed(number: u64, size: u64) -> i64 {
    let unused = 64 - 8 * u32::try_from(size).unwrap_or(8);
    (number << unused).cast_signed() >> unused
}
