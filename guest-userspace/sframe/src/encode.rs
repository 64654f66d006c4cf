//! From a section to its bytes.

use crate::field::{Encoded, FieldKind};
use crate::{EncodeError, Function, Row, Section, Version};

/// `SFRAME_MAGIC`.
const MAGIC: i64 = 0xdee2;
/// `SFRAME_ABI_AMD64_ENDIAN_LITTLE`.
const ABI: i64 = 3;
/// `SFRAME_F_FDE_SORTED`.
const SORTED: i64 = 1;
/// `SFRAME_F_FDE_FUNC_START_PCREL`.
const PC_RELATIVE: i64 = 4;
/// A call pushes the return address: it is always there, below the CFA.
const RETURN_ADDRESS: i64 = -8;
/// Bytes of the header, without an auxiliary one.
const HEADER: u64 = 28;

/// How wide the offsets of a function's rows are.
#[derive(Debug, Clone, Copy)]
struct RowType {
    /// `SFRAME_FRE_TYPE_ADDR1` and so on.
    number: i64,
    bytes: usize,
}

impl Version {
    fn number(self) -> i64 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// Bytes of a function's entry in the table of functions.
    fn entry(self) -> u64 {
        match self {
            Self::V2 => 20,
            Self::V3 => 16,
        }
    }
}

impl Section {
    /// The bytes of a section that begins at an address.
    ///
    /// # Errors
    /// [`EncodeError`] if the version cannot say what the section says.
    pub fn encode(&self, address: u64) -> Result<Encoded, EncodeError> {
        let mut rows = Encoded::default();
        let mut table = Encoded::default();
        for function in &self.functions {
            let at = fits("rows", rows.bytes.len())?;
            let entry = address + HEADER + table.bytes.len() as u64;
            let origin = if self.pc_relative { entry } else { address };
            let start = function.start.wrapping_sub(origin).cast_signed();
            match self.version {
                Version::V2 => function.entry_v2(start, at, address, &mut table)?,
                Version::V3 => function.entry_v3(start, at, &mut table, &mut rows)?,
            }
            function.rows(&mut rows)?;
        }
        let mut section = self.header(&rows)?;
        section.append(table);
        section.append(rows);
        Ok(section)
    }

    fn header(&self, rows: &Encoded) -> Result<Encoded, EncodeError> {
        let count: usize = self.functions.iter().map(|it| it.rows.len()).sum();
        let functions = fits("functions", self.functions.len())?;
        let table = u64::from(functions) * self.version.entry();
        let table = u32::try_from(table).map_err(|_| too_many("functions", 32))?;
        let relative = if self.pc_relative { PC_RELATIVE } else { 0 };
        let mut header = Encoded::default();
        let mut put = |kind, value: i64, size| header.put(kind, value, size);
        put(FieldKind::Magic, MAGIC, 2);
        put(FieldKind::Version, self.version.number(), 1);
        put(FieldKind::Flags, SORTED | relative, 1);
        put(FieldKind::Abi, ABI, 1);
        put(FieldKind::FixedFpOffset, 0, 1);
        put(FieldKind::FixedRaOffset, RETURN_ADDRESS, 1);
        put(FieldKind::AuxiliaryLength, 0, 1);
        put(FieldKind::Functions, functions.into(), 4);
        put(FieldKind::Rows, fits("rows", count)?.into(), 4);
        put(
            FieldKind::RowsLength,
            fits("rows", rows.bytes.len())?.into(),
            4,
        );
        put(FieldKind::FunctionsOffset, 0, 4);
        put(FieldKind::RowsOffset, table.into(), 4);
        Ok(header)
    }
}

impl Function {
    fn entry_v2(
        &self,
        start: i64,
        rows: u32,
        section: u64,
        table: &mut Encoded,
    ) -> Result<(), EncodeError> {
        let far = EncodeError::TooFar {
            start: self.start,
            section,
        };
        let start = i32::try_from(start).map_err(|_| far)?;
        if self.signal {
            return Err(EncodeError::NotInVersion2("signal frames"));
        }
        if self.is_flexible()? {
            return Err(EncodeError::NotInVersion2("flexible functions"));
        }
        table.put(FieldKind::FunctionStart, start.into(), 4);
        table.put(FieldKind::FunctionSize, self.size.into(), 4);
        table.put(FieldKind::FunctionRowsOffset, rows.into(), 4);
        table.put(
            FieldKind::FunctionRows,
            fits("rows", self.rows.len())?.into(),
            4,
        );
        table.put(FieldKind::FunctionInfo, self.info(), 1);
        table.put(FieldKind::RepeatSize, self.repeats.unwrap_or(0).into(), 1);
        table.put(FieldKind::Padding, 0, 2);
        Ok(())
    }

    fn entry_v3(
        &self,
        start: i64,
        at: u32,
        table: &mut Encoded,
        rows: &mut Encoded,
    ) -> Result<(), EncodeError> {
        table.put(FieldKind::FunctionStart, start, 8);
        table.put(FieldKind::FunctionSize, self.size.into(), 4);
        table.put(FieldKind::FunctionRowsOffset, at.into(), 4);
        let count = u16::try_from(self.rows.len()).map_err(|_| too_many("rows", 16))?;
        rows.put(FieldKind::FunctionRows, count.into(), 2);
        rows.put(FieldKind::FunctionInfo, self.info(), 1);
        rows.put(FieldKind::FunctionInfo2, self.is_flexible()?.into(), 1);
        rows.put(FieldKind::RepeatSize, self.repeats.unwrap_or(0).into(), 1);
        Ok(())
    }

    /// `SFRAME_V3_FDE_FUNC_INFO`; that of version 2 is the same without the signal's bit.
    fn info(&self) -> i64 {
        let masked = i64::from(self.repeats.is_some());
        i64::from(self.signal) << 7 | masked << 4 | self.row_type().number
    }

    fn row_type(&self) -> RowType {
        let last = self.rows.iter().map(|row| row.offset).max().unwrap_or(0);
        let (number, bytes) = match last {
            0..=0xff => (0, 1),
            0x100..=0xffff => (1, 2),
            _ => (2, 4),
        };
        RowType { number, bytes }
    }

    fn is_flexible(&self) -> Result<bool, EncodeError> {
        let mut kinds = self.rows.iter().filter_map(|row| row.rules.is_flexible());
        let first = kinds.next().unwrap_or(false);
        if kinds.any(|kind| kind != first) {
            return Err(EncodeError::Mixed { start: self.start });
        }
        Ok(first)
    }

    fn rows(&self, rows: &mut Encoded) -> Result<(), EncodeError> {
        let wide = self.row_type().bytes;
        self.rows.iter().try_for_each(|row| row.put(wide, rows))
    }
}

impl Row {
    fn put(&self, wide: usize, rows: &mut Encoded) -> Result<(), EncodeError> {
        let words = self.rules.words();
        let (size, number) = word_size(&words)?;
        let count = u8::try_from(words.len()).map_err(|_| too_many("data words", 4))?;
        let info = number << 5 | count << 1 | self.rules.base_bit();
        rows.put(FieldKind::RowStart, self.offset.into(), wide);
        rows.put(FieldKind::RowInfo, info.into(), 1);
        for word in words {
            rows.put(FieldKind::Word, word, size);
        }
        Ok(())
    }
}

/// The least size that holds all data words of a row, in bytes and as `SFRAME_FRE_DATAWORD_1B` and so
/// on. A control word is unsigned, but is held to the same range: it is small.
fn word_size(words: &[i64]) -> Result<(usize, u8), EncodeError> {
    let all = |holds: fn(i64) -> bool| words.iter().all(|&word| holds(word));
    if all(|word| i8::try_from(word).is_ok()) {
        Ok((1, 0))
    } else if all(|word| i16::try_from(word).is_ok()) {
        Ok((2, 1))
    } else if all(|word| i32::try_from(word).is_ok()) {
        Ok((4, 2))
    } else {
        Err(too_many("numbers of registers", 29))
    }
}

fn too_many(what: &'static str, bits: u8) -> EncodeError {
    EncodeError::TooMany { what, bits }
}

fn fits(what: &'static str, count: usize) -> Result<u32, EncodeError> {
    u32::try_from(count).map_err(|_| too_many(what, 32))
}
