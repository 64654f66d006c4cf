//! Numbers with units.

use unwindlab_scenario::units::{Count, Memory, NotationError, Number, Time};

#[test]
fn times() {
    assert_eq!("500 us".parse(), Ok(Time::from_micros(500)));
    assert_eq!("20ms".parse(), Ok(Time::from_micros(20_000)));
    assert_eq!("3 s".parse(), Ok(Time::from_micros(3_000_000)));
    for bad in [
        "",
        "3",
        "s",
        "-3 s",
        "3.5 s",
        "3 min",
        "99999999999999999999 s",
    ] {
        assert_eq!(bad.parse::<Time>(), Err(NotationError), "{bad}");
    }
    assert_eq!(Time::from_micros(1).millis_ceil(), 1);
    assert_eq!(Time::from_micros(2_000_000).to_string(), "2 s");
    assert_eq!(Time::from_micros(2500).to_string(), "2500 us");
}

#[test]
fn memory() {
    assert_eq!("256 MiB".parse(), Ok(Memory { mib: 256 }));
    assert_eq!("2 GiB".parse(), Ok(Memory { mib: 2048 }));
    for bad in ["256", "256 MB", "4194304 GiB"] {
        assert_eq!(bad.parse::<Memory>(), Err(NotationError), "{bad}");
    }
}

#[test]
fn numbers() {
    assert_eq!("0xff".parse(), Ok(Number(255)));
    assert_eq!("255".parse(), Ok(Number(255)));
    for bad in ["", "0x", "+1", "0x+1", "ff", "1 0"] {
        assert_eq!(bad.parse::<Number>(), Err(NotationError), "{bad}");
    }
}

#[test]
fn counts() {
    assert_eq!("20".parse(), Ok(Count::Exactly(20)));
    assert_eq!("20 or more".parse(), Ok(Count::AtLeast(20)));
    assert_eq!("0 or less".parse(), Ok(Count::AtMost(0)));
    assert_eq!(">= 20".parse::<Count>(), Err(NotationError));
    assert!(Count::AtLeast(20).admits(20) && !Count::AtLeast(20).admits(19));
    assert!(Count::AtMost(20).admits(20) && !Count::AtMost(20).admits(21));
    assert!(Count::Exactly(20).admits(20) && !Count::Exactly(20).admits(21));
}
