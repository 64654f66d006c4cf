//! What the module above promises.

use proptest::prelude::*;

use super::*;
use crate::image::fixtures::{BASE, LAYOUTS, Layout, functions, kallsyms, segment, symbol};

fn decoded(layout: Layout, symbols: &[Symbol]) -> Result<Vec<Symbol>, KallsymsError> {
    decode(&[segment(&kallsyms(layout, symbols))])
}

#[test]
fn every_layout_and_number_of_blocks() {
    for layout in LAYOUTS {
        // Around one, two and three blocks of 256: with 8-byte alignment, an odd number of
        // markers has padding behind it.
        for count in [0, 1, 100, 254, 255, 256, 511, 512, 600, 767, 768] {
            let symbols = functions(count);
            assert_eq!(
                decoded(layout, &symbols).as_ref(),
                Ok(&symbols),
                "{layout:?} {count}"
            );
        }
    }
}

#[test]
fn per_cpu_symbols_of_old_kernels_are_offsets() {
    let mut symbols = vec![
        symbol(0, 'A', "__per_cpu_start"),
        symbol(0x35000, 'A', "pcpu_hot"),
    ];
    symbols.extend(functions(300));
    assert_eq!(decoded(Layout::AbsolutePerCpu, &symbols), Ok(symbols));
}

#[test]
fn long_names_take_two_bytes_of_length() {
    let mut symbols = functions(3);
    symbols.push(symbol(BASE + 0x1000, 't', &"n".repeat(500)));
    symbols.push(symbol(BASE + 0x2000, 't', "last"));
    for layout in LAYOUTS {
        assert_eq!(decoded(layout, &symbols).as_ref(), Ok(&symbols));
    }
}

#[test]
fn says_why_there_is_none() {
    assert_eq!(decode(&[]), Err(KallsymsError::Missing));
    assert_eq!(decode(&[segment(b"no table")]), Err(KallsymsError::Missing));

    let symbols = [symbol(BASE, 'T', "_stext")];
    assert_eq!(
        decoded(Layout::Relative, &symbols),
        Err(KallsymsError::Damaged("it has no _text"))
    );
    let symbols = [symbol(BASE + 32, 't', "b"), symbol(BASE, 'T', "_text")];
    assert_eq!(
        decoded(Layout::Based, &symbols),
        Err(KallsymsError::Damaged("its addresses are out of order"))
    );
    let mut data = kallsyms(Layout::Relative, &functions(300));
    let tokens = find_tokens(&data).next().map(|tokens| tokens.end).unwrap();
    data.truncate(tokens + 100);
    assert_eq!(
        decode(&[segment(&data)]),
        Err(KallsymsError::Damaged("its addresses are cut short"))
    );
    assert!(matches!(
        decode(&[segment(&data[200..])]),
        Err(KallsymsError::Damaged(_))
    ));
}

#[test]
fn a_segment_at_the_end_of_memory_wraps() {
    let data = kallsyms(Layout::Relative, &functions(300));
    let end = Segment {
        address: u64::MAX - 0x2000,
        ..segment(&data)
    };
    assert!(decode(&[end]).is_err());
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        names in prop::collection::vec("[a-zA-Z_.][a-zA-Z0-9_.]{0,140}", 0..600),
        layout in prop::sample::select(LAYOUTS.to_vec()),
    ) {
        let mut symbols = functions(1);
        symbols.extend((100_u64..).zip(&names).map(|(n, name)| symbol(BASE + n * 16, 't', name)));
        prop_assert_eq!(decoded(layout, &symbols), Ok(symbols));
    }

    #[test]
    fn hostile_tables_never_panic(
        layout in prop::sample::select(LAYOUTS.to_vec()),
        changes in prop::collection::vec((0..8192_usize, any::<u8>()), 1..12),
        (from, to) in (0..4096_usize, 0..16384_usize),
    ) {
        let mut data = kallsyms(layout, &functions(600));
        for (at, byte) in changes {
            if let Some(place) = data.get_mut(at) {
                *place = byte;
            }
        }
        let _ = decode(&[segment(&data)]);
        let _ = decode(&[segment(data.get(from..to).unwrap_or(&data[from..]))]);
    }

    #[test]
    fn any_bytes_around_the_digits_never_panic(
        before in prop::collection::vec(any::<u8>(), 0..300),
        after in prop::collection::vec(0..3_u8, 0..1200),
    ) {
        let mut data = before;
        data.extend(b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00");
        data.extend(after);
        prop_assert!(decode(&[segment(&data)]).is_err());
    }
}
