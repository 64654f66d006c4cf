//! Small sections by hand, and wrong ones by number.

use super::*;
use crate::{Base, Function, Numbers, Row, Rules, Section, Version};

const NO_ADDRESS: u64 = 0x0123_4567_89ab_cdef;
const AT: u64 = 0x5000_0000;
const FROM: Registers = Registers {
    ip: 0x40_0028,
    sp: 0x7000,
    fp: NO_ADDRESS,
};

/// A leaf that has pushed a word, called by a function that has taken 24 bytes, called by the root.
fn section(version: Version) -> Section {
    let function = |start, rows: &[(u32, i32)]| Function {
        start,
        size: 0x20,
        repeats: None,
        signal: false,
        rows: { rows.iter() }
            .map(|&(offset, cfa)| Row {
                offset,
                rules: Rules::Plain {
                    base: Base::StackPointer,
                    cfa,
                    frame_pointer: None,
                },
            })
            .collect(),
    };
    let mut root = function(0x40_0000, &[]);
    root.rows.push(Row {
        offset: 0,
        rules: Rules::Outermost,
    });
    Section {
        version,
        pc_relative: version == Version::V3,
        functions: vec![
            root,
            function(0x40_0020, &[(0, 8), (4, 16)]),
            function(0x40_0040, &[(0, 8), (8, 32)]),
        ],
    }
}

fn memory(at: u64) -> Option<u64> {
    match at {
        0x7008 => Some(0x40_0050),
        0x7028 => Some(0x40_0010),
        0x6000..0x8000 => Some(0),
        _ => None,
    }
}

fn said(bytes: &[u8]) -> Said {
    let text = 0x40_0000..0x40_0060;
    let section = Registered {
        bytes,
        address: AT,
        text,
    };
    walk(&section, FROM, &memory, 8)
}

#[test]
fn a_right_section_says_the_stack() {
    for version in [Version::V2, Version::V3] {
        let frames = vec![0x40_0028, 0x40_0050, 0x40_0010];
        let bytes = section(version).encode(AT).unwrap().bytes;
        assert_eq!(said(&bytes), Said { frames, ends: true });
    }
}

#[test]
fn another_offset_says_another_stack() {
    let mut section = section(Version::V3);
    section.functions[1].rows[1].rules = Rules::Plain {
        base: Base::StackPointer,
        cfa: 24,
        frame_pointer: None,
    };
    let bytes = section.encode(AT).unwrap().bytes;
    let frames = vec![0x40_0028, 0];
    assert_eq!(said(&bytes), Said { frames, ends: true });
}

#[test]
fn functions_that_are_not_sorted_are_left_open() {
    let mut section = section(Version::V2);
    section.functions.reverse();
    let bytes = section.encode(AT).unwrap().bytes;
    let frames = vec![0x40_0028];
    let ends = false;
    assert_eq!(said(&bytes), Said { frames, ends });
}

#[test]
fn any_wrong_field_is_survived_and_is_the_same_again() {
    for trial in 0..20_000 {
        let version = if trial % 2 == 0 {
            Version::V2
        } else {
            Version::V3
        };
        let right = section(version).encode(AT).unwrap();
        let wrong = |mut section: crate::Encoded| {
            let what = section.make_wrong(&mut Numbers::of(7, trial));
            (what, section.bytes)
        };
        let (what, bytes) = wrong(right.clone());
        assert_eq!((what, bytes.clone()), wrong(right.clone()));
        assert!(what.is_some() && bytes != right.bytes, "{trial}");
        let said = said(&bytes);
        assert!((1..=8).contains(&said.frames.len()), "{trial}");
    }
}
