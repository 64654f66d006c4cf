//! Notations of places.

use unwindlab_scenario::place::{KernelPlace, SourceLine, SymbolOffset};
use unwindlab_scenario::units::NotationError;

#[test]
fn notation() {
    let place = |symbol: &str, offset| SymbolOffset {
        symbol: symbol.to_owned(),
        offset,
    };
    assert_eq!("spin_loop".parse(), Ok(place("spin_loop", 0)));
    assert_eq!("a.isra.0+0x1f".parse(), Ok(place("a.isra.0", 31)));
    assert_eq!("a+16".parse(), Ok(place("a", 16)));
    for bad in ["", "+1", "a+", "a+0x", "a+-1", "a++1", "a b", "1a", "a+0xg"] {
        assert_eq!(bad.parse::<SymbolOffset>(), Err(NotationError), "{bad}");
    }
    assert_eq!(place("a", 16).to_string(), "a+0x10");
}

#[test]
fn lines_of_the_source() {
    let line = SourceLine {
        file: "kernel/unwind/deferred.c".to_owned(),
        line: 123,
    };
    let text = "kernel/unwind/deferred.c:123";
    assert_eq!(text.parse(), Ok(KernelPlace::Line(line)));
    let symbol = "spin_loop+0x2".parse().map(KernelPlace::Symbol);
    assert_eq!("spin_loop+0x2".parse(), symbol);
    for bad in [
        "a.c:",
        ":1",
        "a.c:0",
        "a.c:+1",
        "a.c:-1",
        "a b.c:1",
        "a.c:99999999999",
        "a.c",
    ] {
        let parsed = bad.parse::<KernelPlace>();
        assert!(!matches!(parsed, Ok(KernelPlace::Line(_))), "{bad}");
    }
    assert_eq!("a.c:0x1".parse::<KernelPlace>(), Err(NotationError));
}
