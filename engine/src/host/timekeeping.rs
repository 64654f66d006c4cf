//! What a kernel takes its clocks for.
//!
//! QEMU's TCG gives a guest the time-stamp counter (TSC) of the CPU that it runs on (`cpu_get_ticks()`, system/cpu-timers.c), and each CPU an APIC timer that
//! counts nanoseconds (hw/intc/apic.c). Linux measures the rates of both once, in its boot, against other timers that QEMU emulates
//! (`determine_cpu_tsc_frequencies()`, arch/x86/kernel/tsc.c; `calibrate_APIC_clock()`, arch/x86/kernel/apic/apic.c). A machine that gets little of its CPUs
//! meanwhile comes to wrong ones, and its time is wrong for as long as it runs. The outer machine's clock is what limits of trials are measured by.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use unwindlab_vmm::host_tsc;

/// How long the counter is watched, in nanoseconds.
const WATCHED: u64 = 2_000_000;
/// How often a pair of clock and counter is read, of which the closest counts.
const TRIES: usize = 10;

/// The rates that a kernel takes its clocks for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Timekeeping {
    /// Thousands of counts a second of the time-stamp counter.
    tsc_khz: u64,
    /// Counts a second of the APIC timers, of all CPUs those that are off most; `None` where it does not say.
    apic_hz: Option<u64>,
}

impl Timekeeping {
    /// Of the kernel that runs this program.
    pub fn of_this_kernel() -> Self {
        let timers = std::fs::read_to_string("/proc/timer_list");
        Self {
            tsc_khz: measured(),
            apic_hz: timers.ok().and_then(|text| apic_hz(&text)),
        }
    }

    /// How many times as fast as this system's clock the kernel's runs, which has the same counter, unless it is the same within two
    /// hundredths: Linux refines a rate by up to one (`tsc_refine_calibration_work()`, arch/x86/kernel/tsc.c).
    pub fn clock_is_off(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let times = khz() as f64 / self.tsc_khz.max(1) as f64;
        (!(0.98..=1.02).contains(&times)).then_some(times)
    }

    /// How many times too fast a kernel in QEMU takes its APIC timers for, unless that is right within a twentieth: one that was
    /// measured against few ticks of another timer is no closer.
    pub fn timers_are_off(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let times = self.apic_hz? as f64 / APIC_HZ as f64;
        (!(0.95..=1.05).contains(&times)).then_some(times)
    }
}

/// Thousands of counts a second, by this system's clock, measured once.
pub fn khz() -> u64 {
    static KHZ: OnceLock<u64> = OnceLock::new();
    *KHZ.get_or_init(measured)
}

/// The same, measured now.
fn measured() -> u64 {
    let (began, from) = pair();
    while nanos().saturating_sub(began) < WATCHED {}
    let (ended, to) = pair();
    let nanos = ended.saturating_sub(began).max(1);
    let counts = u128::from(to.saturating_sub(from)) * 1_000_000;
    u64::try_from(counts / u128::from(nanos)).unwrap_or(u64::MAX)
}

/// Nanoseconds of the clock, and the counter at that time.
fn pair() -> (u64, u64) {
    let tries = (0..TRIES).map(|_| {
        let before = nanos();
        let count = host_tsc();
        let after = nanos();
        (after.saturating_sub(before), (before, count))
    });
    tries.min().map_or((0, 0), |(_, pair)| pair)
}

/// The rate of an APIC timer in QEMU, as Linux sets its divider (`APIC_DIVISOR`).
const APIC_HZ: u64 = 1_000_000_000 / 16;

/// [`Timekeeping::apic_hz`] by the text of `/proc/timer_list` (`print_tickdevice()`, kernel/time/timer_list.c).
fn apic_hz(text: &str) -> Option<u64> {
    let devices = text.split("Clock Event Device:").skip(1);
    let apics = devices.filter(|it| it.trim_start().starts_with("lapic"));
    let rates = apics.filter_map(|device| {
        let value = |key: &str| {
            let line = device.lines().find_map(|it| it.trim().strip_prefix(key));
            line?.trim().parse::<u64>().ok()
        };
        let (mult, shift) = (value("mult:")?, value("shift:")?);
        let hz = (u128::from(mult) * 1_000_000_000).checked_shr(u32::try_from(shift).ok()?)?;
        u64::try_from(hz).ok()
    });
    rates.max_by_key(|hz| hz.abs_diff(APIC_HZ))
}

/// The clock that nobody corrects.
fn nanos() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000) + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_counter_has_the_same_rate_twice_and_another_one_runs_away() {
        let is_off = |tsc_khz| {
            let apic_hz = None;
            Timekeeping { tsc_khz, apic_hz }.clock_is_off()
        };
        assert_eq!(Timekeeping::of_this_kernel().clock_is_off(), None);
        assert_eq!(is_off(khz()), None);
        let times = is_off(khz() / 4).unwrap();
        assert!((3.9..4.1).contains(&times), "{times}");
        assert!(is_off(khz() * 2).is_some_and(|times| times < 0.6));
        assert!(is_off(0).is_some());
    }

    #[test]
    fn the_rate_of_the_worst_apic_timer_counts() {
        let device = |name: &str, mult: u64| {
            format!(
                "Tick Device: mode:     1\nClock Event Device: {name}\n max_delta_ns:   21474836\n mult:           {mult}\n shift:          32\n"
            )
        };
        let list = |mults: [u64; 2]| {
            let apics = mults.map(|mult| device("lapic", mult));
            [device("hpet", 429_496_730), apics.concat()].concat()
        };
        let are_off = |hz| {
            let (tsc_khz, apic_hz) = (0, Some(hz));
            Timekeeping { tsc_khz, apic_hz }.timers_are_off()
        };
        let right = list([268_435_456, 268_435_456]);
        assert_eq!(apic_hz(&right), Some(62_500_000));
        let one_is_off = list([268_435_456, 272_888_263]);
        let hz = apic_hz(&one_is_off).unwrap();
        assert_eq!((hz, are_off(hz)), (63_536_749, None));
        // What was counted between ticks that came all at once.
        let hz = apic_hz(&list([45_741, 268_435_456])).unwrap();
        assert!(are_off(hz).is_some_and(|times| times < 0.01));
        for nothing in [
            "",
            "Clock Event Device: lapic\n mult: x\n",
            &device("hpet", 7),
        ] {
            assert_eq!(apic_hz(nothing), None, "{nothing}");
        }
    }
}
