#![allow(
    clippy::cast_possible_truncation,
    clippy::unusual_byte_groupings,
    reason = "a plain reader of what was just written; info bytes are grouped by their bits"
)]

use proptest::prelude::*;

use super::*;

fn plain(offset: u32, cfa: i32, frame_pointer: Option<i32>) -> Row {
    let base = Base::StackPointer;
    Row {
        offset,
        rules: Rules::Plain {
            base,
            cfa,
            frame_pointer,
        },
    }
}

fn function(start: u64, size: u32, rows: Vec<Row>) -> Function {
    Function {
        start,
        size,
        repeats: None,
        signal: false,
        rows,
    }
}

fn section(version: Version, functions: Vec<Function>) -> Section {
    Section {
        version,
        pc_relative: true,
        functions,
    }
}

/// The bytes, written down from the specification's tables.
#[test]
fn the_smallest_section_of_version_3() {
    let one = section(
        Version::V3,
        vec![function(0x2000, 16, vec![plain(0, 8, None)])],
    );
    let encoded = one.encode(0x1000).unwrap();
    let header = [
        0xe2, 0xde, 3, 5, 3, 0, 0xf8, 0, 1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0,
        0,
    ];
    // 0x2000 less the address of the field, 0x101c.
    let entry = [0xe4, 0x0f, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0];
    let attributes = [1, 0, 0, 0, 0];
    let row = [0, 0b0_00_0001_1, 8];
    assert_eq!(
        encoded.bytes,
        [&header[..], &entry, &attributes, &row].concat()
    );
    assert_eq!(encoded.bytes.len(), 52);
}

#[test]
fn version_2_has_its_attributes_in_the_table() {
    let mut one = section(
        Version::V2,
        vec![function(
            0x2000,
            0x300,
            vec![plain(0, 8, None), plain(0x101, 16, Some(-16))],
        )],
    );
    one.pc_relative = false;
    let encoded = one.encode(0x1000).unwrap();
    assert_eq!(encoded.bytes[3], 1);
    let entry = [
        0x00, 0x10, 0, 0, 0x00, 0x03, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0,
    ];
    assert_eq!(encoded.bytes[28..48], entry);
    let rows = [0, 0, 0b0_00_0001_1, 8, 1, 1, 0b0_00_0010_1, 16, 0xf0];
    assert_eq!(encoded.bytes[48..], rows);
}

/// The signal frame of x86-64: all three are stored in the `ucontext` at the stack pointer.
#[test]
fn a_flexible_row_has_control_words() {
    let stored = |offset| Rule {
        register: Some(7),
        offset,
        stored: true,
    };
    let rules = Rules::Flexible {
        cfa: stored(160),
        return_address: Some(stored(168)),
        frame_pointer: Some(stored(120)),
    };
    let mut restorer = function(0x2000, 9, vec![Row { offset: 0, rules }]);
    restorer.signal = true;
    let encoded = section(Version::V3, vec![restorer.clone()])
        .encode(0x1000)
        .unwrap();
    let row = [
        0,
        0b0_01_0110_0,
        0x3b,
        0,
        160,
        0,
        0x3b,
        0,
        168,
        0,
        0x3b,
        0,
        120,
        0,
    ];
    assert_eq!(encoded.bytes[49..], row);
    assert_eq!(encoded.bytes[44..49], [1, 0, 0x80, 1, 0]);
    let old = section(Version::V2, vec![restorer]).encode(0x1000);
    assert_eq!(old, Err(EncodeError::NotInVersion2("signal frames")));
}

/// The specification, 3.2: one word in the place of the return address' two.
#[test]
fn a_return_address_below_the_cfa_is_one_word_of_padding() {
    let rules = Rules::Flexible {
        cfa: Rule {
            register: Some(10),
            offset: 0,
            stored: false,
        },
        return_address: None,
        frame_pointer: Some(Rule {
            register: Some(6),
            offset: 0,
            stored: true,
        }),
    };
    assert_eq!(rules.words(), [0x51, 0, 0, 0x33, 0]);
}

#[test]
fn what_a_version_cannot_say_is_an_error() {
    let far = section(
        Version::V2,
        vec![function(1 << 40, 1, vec![plain(0, 8, None)])],
    );
    assert!(matches!(far.encode(0), Err(EncodeError::TooFar { .. })));
    let many = vec![plain(0, 8, None); 1 << 16];
    let many = section(Version::V3, vec![function(0, 1, many)]);
    assert!(matches!(
        many.encode(0),
        Err(EncodeError::TooMany { bits: 16, .. })
    ));
}

/// Offset, info byte and data words.
type ReadRow = (u32, u8, Vec<u8>);

/// What a reader sees that knows nothing but the specification: start, size and rows.
fn read(bytes: &[u8], address: u64) -> Vec<(u64, u32, Vec<ReadRow>)> {
    let number = |at: usize, size: usize| {
        let bytes = &bytes[at..at + size];
        bytes
            .iter()
            .rev()
            .fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
    };
    let version = bytes[2];
    let relative = bytes[3] & 4 != 0;
    let (table, rows) = (28 + number(20, 4) as usize, 28 + number(24, 4) as usize);
    assert_eq!(rows + number(16, 4) as usize, bytes.len());
    let functions = (0..number(8, 4) as usize).map(|index| {
        let at = table + index * if version == 2 { 20 } else { 16 };
        let origin = if relative {
            address + at as u64
        } else {
            address
        };
        let (offset, behind) = match version {
            2 => (number(at, 4) as u32 as i32 as i64, at + 4),
            _ => (number(at, 8) as i64, at + 8),
        };
        let mut row = rows + number(behind + 4, 4) as usize;
        let (count, info) = match version {
            2 => (number(at + 12, 4), bytes[at + 16]),
            _ => {
                row += 5;
                (number(row - 5, 2), bytes[row - 3])
            }
        };
        let wide = 1 << (info & 15);
        let rows = (0..count).map(|_| {
            let info = bytes[row + wide];
            let words = usize::from(info >> 1 & 15) << (info >> 5 & 3);
            let start = number(row, wide) as u32;
            let data = bytes[row + wide + 1..row + wide + 1 + words].to_vec();
            row += wide + 1 + words;
            (start, info, data)
        });
        (
            origin.wrapping_add(offset as u64),
            number(behind, 4) as u32,
            rows.collect(),
        )
    });
    functions.collect()
}

prop_compose! {
    fn any_row()(step in 1u32..0x2_0000, cfa in any::<i32>(), fp in any::<Option<i32>>()) -> Row {
        plain(step, cfa, fp)
    }
}

fn any_section() -> impl Strategy<Value = Section> {
    let rows = prop::collection::vec(any_row(), 0..20);
    let functions = prop::collection::vec((0u64..0x1000_0000, any::<u32>(), rows), 0..20);
    (any::<bool>(), any::<bool>(), functions).prop_map(|(new, pc_relative, functions)| Section {
        version: if new { Version::V3 } else { Version::V2 },
        pc_relative,
        functions: functions
            .into_iter()
            .map(|(start, size, rows)| function(start, size, rows))
            .collect(),
    })
}

proptest! {
    #[test]
    fn a_reader_finds_what_was_written(section in any_section(), address in 0u64..0x1000_0000) {
        let encoded = section.encode(address).unwrap();
        let found = read(&encoded.bytes, address);
        prop_assert_eq!(found.len(), section.functions.len());
        for (function, (start, size, rows)) in section.functions.iter().zip(found) {
            prop_assert_eq!((function.start, function.size), (start, size));
            prop_assert_eq!(function.rows.len(), rows.len());
            for (row, (offset, info, data)) in function.rows.iter().zip(rows) {
                prop_assert_eq!(row.offset, offset);
                let size = 1usize << (info >> 5 & 3);
                let words: Vec<i64> = data.chunks(size).map(|word| {
                    let fill = if word[size - 1] & 0x80 == 0 { 0 } else { 0xff };
                    let mut wide = [fill; 8];
                    wide[..size].copy_from_slice(word);
                    i64::from_le_bytes(wide)
                }).collect();
                prop_assert_eq!(row.rules.words(), words);
            }
        }
    }

    #[test]
    fn every_byte_is_of_one_field(section in any_section()) {
        let encoded = section.encode(0x1000).unwrap();
        let mut next = 0;
        for field in &encoded.fields {
            prop_assert_eq!(field.bytes.start, next);
            next = field.bytes.end;
        }
        prop_assert_eq!(next, encoded.bytes.len());
    }
}
