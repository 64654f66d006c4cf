use super::super::count::MASK;
use super::*;

const SELECTOR_1: u32 = 0x187;
const COUNTER_1: u32 = 0x4c2;
const NARROW_1: u32 = 0xc2;
const FIXED_1: u32 = 0x30a;
const FIXED_CONTROL: u32 = 0x38d;
const STATUS: u32 = 0x38e;
const CONTROL: u32 = 0x38f;
const CLEAR: u32 = 0x390;

/// Cycles, in user and kernel mode, with an interrupt: what Linux writes.
const SAMPLING: u64 = ENABLE | INTERRUPT | USER | KERNEL | CYCLES;
/// The same of fixed counter 1.
const FIXED_SAMPLING: u64 = 0xb0;
const FIXED_1_ENABLED: u64 = 1 << 33;

fn write(counters: &mut Architectural, index: u32, data: u64, tsc: u64) {
    assert_eq!(
        counters.write_msr(index, data, tsc),
        Some(true),
        "{index:#x}"
    );
}

/// General counter 1 counts.
fn general_counting(select: u64, value: u64) -> Architectural {
    let mut counters = Architectural::default();
    write(&mut counters, COUNTER_1, value, 100);
    write(&mut counters, SELECTOR_1, select, 100);
    counters
}

/// Fixed counter 1 counts.
fn fixed_counting(control: u64, value: u64) -> Architectural {
    let mut counters = Architectural::default();
    write(&mut counters, FIXED_1, value, 100);
    write(&mut counters, FIXED_CONTROL, control, 100);
    write(&mut counters, CONTROL, FIXED_1_ENABLED, 100);
    counters
}

#[test]
fn the_leaf_is_that_of_a_guest_of_kvm_with_version_2() {
    assert_eq!(LEAF, [0x0730_0402, 0, 0, 0x603]);
}

#[test]
fn cycles_are_counted_while_both_registers_enable_them() {
    let mut counters = general_counting(SAMPLING, 7);
    assert_eq!(counters.read_msr(SELECTOR_1, 400), Some(SAMPLING));
    assert_eq!(counters.read_msr(CONTROL, 400), Some(0xf), "as after reset");
    for index in [COUNTER_1, NARROW_1] {
        assert_eq!(counters.read_msr(index, 400), Some(307));
    }
    assert_eq!(counters.rdpmc(1, 400), Some(307));
    write(&mut counters, CONTROL, 0xd, 500);
    assert_eq!(
        counters.rdpmc(1, 900),
        Some(407),
        "off in the global register"
    );
    write(&mut counters, CONTROL, 2, 900);
    assert_eq!(counters.rdpmc(1, 910), Some(417), "goes on");
    write(&mut counters, SELECTOR_1, SAMPLING & !ENABLE, 920);
    assert_eq!(counters.rdpmc(1, 990), Some(427), "off in its selector");
    for other in [
        0x3d,
        0x13c,
        CYCLES | EDGE,
        CYCLES | INVERT,
        CYCLES | 1 << 24,
    ] {
        let counters = general_counting(SAMPLING & !EVENT | other, 7);
        assert_eq!(counters.rdpmc(1, 400), Some(7), "{other:#x}");
    }
    let nowhere = general_counting(SAMPLING & !(USER | KERNEL), 7);
    assert_eq!(nowhere.rdpmc(1, 400), Some(7));
}

#[test]
fn only_the_fixed_counter_of_cycles_counts() {
    let mut counters = fixed_counting(FIXED_SAMPLING, 7);
    assert_eq!(counters.read_msr(FIXED_1, 400), Some(307));
    assert_eq!(counters.rdpmc(RDPMC_FIXED | 1, 400), Some(307));
    write(&mut counters, CONTROL, 0xf | 5 << 32, 500);
    assert_eq!(
        counters.read_msr(FIXED_1, 900),
        Some(407),
        "off in the global register"
    );
    write(&mut counters, CONTROL, FIXED_1_ENABLED, 900);
    write(&mut counters, FIXED_CONTROL, 0x80, 910);
    assert_eq!(
        counters.read_msr(FIXED_1, 990),
        Some(417),
        "at no privilege level"
    );
    let mut all = Architectural::default();
    write(&mut all, FIXED_CONTROL, 0x333, 0);
    write(&mut all, CONTROL, 7 << 32, 0);
    let values = [0, 1, 2].map(|it| all.rdpmc(RDPMC_FIXED | it, 50));
    assert_eq!(values, [Some(0), Some(50), Some(0)]);
}

#[test]
fn a_general_counter_takes_32_bits_by_its_old_register_and_48_by_its_new_one() {
    let mut counters = Architectural::default();
    for (written, held) in [
        (0x7fff_ffff, 0x7fff_ffff),
        (0x8000_0000, 0xffff_8000_0000),
        (0x1234_0000_0001, 1),
        (u64::MAX, MASK),
    ] {
        write(&mut counters, NARROW_1, written, 0);
        assert_eq!(counters.read_msr(COUNTER_1, 0), Some(held), "{written:#x}");
    }
    write(&mut counters, COUNTER_1, 0x1234_0000_0001, 0);
    assert_eq!(counters.read_msr(NARROW_1, 0), Some(0x1234_0000_0001));
    let caps = counters.read_msr(0x345, 0);
    assert_eq!(caps, Some(1 << 13), "that is what is announced");
}

#[test]
fn what_version_2_reserves_is_refused_and_changes_nothing() {
    let mut counters = general_counting(SAMPLING, 7);
    let before = counters.clone();
    for (index, data) in [
        (COUNTER_1, 1 << 48),
        (FIXED_1, 1 << 48),
        (SELECTOR_1, SAMPLING | 1 << 21),
        (SELECTOR_1, 1 << 32),
        (FIXED_CONTROL, 4),
        (FIXED_CONTROL, 1 << 12),
        (CONTROL, 1 << 4),
        (CONTROL, 1 << 35),
        (CLEAR, 1 << 4),
        (CLEAR, 1 << 61),
        (STATUS, 0),
        (0x345, 1 << 13),
    ] {
        assert_eq!(
            counters.write_msr(index, data, 400),
            Some(false),
            "{index:#x} {data:#x}"
        );
    }
    assert_eq!(counters, before);
    write(&mut counters, CLEAR, 3 << 62, 400);
    assert_eq!(counters.read_msr(CLEAR, 400), Some(0));
}

#[test]
fn there_are_the_registers_that_kvm_forwards_and_no_others() {
    let counters = Architectural::default();
    let forwarded: Vec<u32> = MSRS
        .iter()
        .flat_map(|(first, n)| *first..first + n)
        .collect();
    for index in 0..0x1000 {
        let known = counters.read_msr(index, 0).is_some();
        assert_eq!(known, forwarded.contains(&index), "{index:#x}");
        let written = Architectural::default().write_msr(index, 0, 0);
        assert_eq!(written.is_some(), known, "{index:#x}");
    }
    assert_eq!(counters.read_msr(u32::MAX, 0), None);
    assert_eq!(forwarded.len(), 4 + 4 + 3 + 1 + 4 + 4);
    assert!(
        MSRS.iter().all(|(_, count)| *count <= 8),
        "one byte of a bitmap"
    );
    for ecx in [
        4,
        RDPMC_FIXED | 3,
        1 << 29,
        1 << 31,
        1 << 31 | RDPMC_FIXED,
        u32::MAX,
    ] {
        assert_eq!(counters.rdpmc(ecx, 0), None, "{ecx:#x}");
    }
}

#[test]
fn no_counter_that_interrupts_overflows_of_its_own() {
    let start = MASK - 10;
    let general = general_counting(SAMPLING, start);
    let fixed = fixed_counting(FIXED_SAMPLING, start);
    for now in [110, 1 << 50, u64::MAX] {
        assert_eq!(general.rdpmc(1, now), Some(MASK));
        assert_eq!(fixed.rdpmc(RDPMC_FIXED | 1, now), Some(MASK));
        assert_eq!(fixed.read_msr(STATUS, now), Some(0));
    }
    let silent = fixed_counting(0x30, start);
    assert_eq!(silent.rdpmc(RDPMC_FIXED | 1, 111), Some(0), "goes round");
}

#[test]
fn an_overflow_is_told_in_the_status_until_it_is_cleared() {
    let mut counters = fixed_counting(FIXED_SAMPLING, SIGN);
    assert_eq!(counters.ready(None, 0, 100), Ok(33));
    counters.overflow(33, 200);
    assert_eq!(counters.read_msr(FIXED_1, 230), Some(30));
    assert_eq!(counters.read_msr(STATUS, 230), Some(FIXED_1_ENABLED));
    let still = Err(NoOverflow::StillOverflowed(33));
    assert_eq!(counters.ready(None, 0, 230), still);
    write(&mut counters, FIXED_1, SIGN, 240);
    assert_eq!(
        counters.ready(None, 0, 240),
        still,
        "written, and not cleared"
    );
    write(&mut counters, CLEAR, 7 | 5 << 32, 250);
    assert_eq!(counters.ready(None, 0, 250), still, "others are cleared");
    write(&mut counters, CLEAR, FIXED_1_ENABLED, 260);
    assert_eq!(counters.read_msr(STATUS, 260), Some(0));
    assert_eq!(counters.ready(None, 0, 260), Ok(33));
    counters.overflow(33, 300);
    write(&mut counters, CLEAR, FIXED_1_ENABLED, 310);
    assert_eq!(
        counters.ready(None, 0, 310),
        still,
        "cleared, and not written"
    );
    assert_eq!(
        counters.to_string(),
        "selectors 0x0, 0x0, 0x0, 0x0, fixed 0xb0, \
                                      enabled 0x200000000, overflowed 0x0"
    );
}

#[test]
fn an_overflow_takes_the_lowest_counter_that_may_interrupt() {
    let mut counters = fixed_counting(FIXED_SAMPLING, SIGN);
    write(&mut counters, COUNTER_1, SIGN, 100);
    write(&mut counters, SELECTOR_1, SAMPLING, 100);
    assert_eq!(counters.ready(None, 0, 100), Ok(33), "the other is off");
    write(&mut counters, CONTROL, ALL, 100);
    assert_eq!(counters.ready(None, 0, 100), Ok(1));
    assert_eq!(counters.ready(Some(33), 3, 100), Ok(33));
    for other in [0, 2, 4, 31, 32, 34, 35, 64, 97, u8::MAX] {
        assert_eq!(
            counters.ready(Some(other), 0, 100),
            Err(NoOverflow::Disabled)
        );
    }
    write(&mut counters, CONTROL, 0, 100);
    assert_eq!(
        counters.ready(None, 0, 100),
        Err(NoOverflow::Disabled),
        "all off"
    );
    for (without, cpl) in [(ENABLE, 0), (INTERRUPT, 0), (KERNEL, 0), (USER, 3)] {
        let counters = general_counting(SAMPLING & !without, SIGN);
        assert_eq!(counters.ready(None, cpl, 100), Err(NoOverflow::Disabled));
    }
    for (control, cpl) in [(0x30, 0), (0xa0, 0), (0x90, 3), (0xb, 0), (0xb00, 0)] {
        let counters = fixed_counting(control, SIGN);
        assert_eq!(
            counters.ready(None, cpl, 100),
            Err(NoOverflow::Disabled),
            "{control:#x}"
        );
    }
}
