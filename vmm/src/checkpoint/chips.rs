//! The state that the vCPUs share: interrupt controllers, timer, clock, serial port.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
    kvm_pit_channel_state, kvm_pit_state2,
};
use kvm_ioctls::VmFd;
use vm_superio::SerialState;

use super::{CheckpointError, failed, host_tsc};
use crate::devices::serial::Uart;

const IRQCHIPS: [u32; 3] = [
    KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE,
    KVM_IRQCHIP_IOAPIC,
];

/// The state of all of them.
#[derive(Debug, Clone)]
pub(crate) struct Chips {
    irqchips: Vec<kvm_irqchip>,
    pit: kvm_pit_state2,
    /// Nanoseconds of kvmclock.
    clock: u64,
    /// The host's TSC when it was read. The guest's TSCs stand still since then.
    host_tsc: u64,
    serial: SerialState,
}

impl Chips {
    /// Reads it.
    pub(crate) fn of(vm: &VmFd, uart: &Uart) -> Result<Self, CheckpointError> {
        Ok(Self {
            irqchips: irqchips(vm)?,
            pit: vm.get_pit2().map_err(failed("get the timer"))?,
            clock: vm.get_clock().map_err(failed("get the clock"))?.clock,
            host_tsc: host_tsc(),
            serial: uart.state(),
        })
    }

    /// Writes it. KVM restarts a controller or the timer when it is set, so this sets only those that
    /// differ.
    pub(crate) fn restore(&self, vm: &VmFd, uart: &Uart) -> Result<(), CheckpointError> {
        // First, because it may raise its interrupt line.
        if uart.state() != self.serial {
            uart.set_state(&self.serial)
                .map_err(CheckpointError::Serial)?;
        }
        for (saved, now) in self.irqchips.iter().zip(irqchips(vm)?) {
            if bytes(saved) != bytes(&now) {
                vm.set_irqchip(saved)
                    .map_err(failed("set an interrupt controller"))?;
            }
        }
        let pit = vm.get_pit2().map_err(failed("get the timer"))?;
        if pit != self.pit {
            vm.set_pit2(&self.pit).map_err(failed("set the timer"))?;
        }
        Ok(())
    }

    /// The host's TSC when the guest's began to stand still.
    pub(crate) const fn host_tsc(&self) -> u64 {
        self.host_tsc
    }

    /// Has kvmclock go on from where it was when the host's TSC was `now`, from where on the guest's TSCs
    /// go on: between the two clocks of the guest is as much as was. Without that, times that
    /// code on a path compares are a restore's duration apart, a millisecond and more.
    pub(crate) fn restore_clock(
        &self,
        vm: &VmFd,
        now: u64,
        khz: u32,
    ) -> Result<(), CheckpointError> {
        let passed = host_tsc().wrapping_sub(now);
        // A CPU of the host may be a little behind another one.
        let passed = passed.cast_signed().max(0).cast_unsigned();
        set_clock(vm, self.clock.saturating_add(nanoseconds(passed, khz)))
    }

    /// Describes what differs from another state.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let chips = self.irqchips.iter().zip(&other.irqchips);
        let chips = chips
            .filter(|(one, other)| bytes(one) != bytes(other))
            .map(|(one, _)| format!("interrupt controller {}", one.chip_id));
        let channels = self.pit.channels.iter().zip(&other.pit.channels);
        let timer = channels
            .filter(|(one, other)| {
                // A time of the host's clock.
                let untimed = |channel: &kvm_pit_channel_state| {
                    let mut channel = *channel;
                    channel.count_load_time = 0;
                    channel
                };
                untimed(one) != untimed(other)
            })
            .map(|_| "timer".to_owned());
        let serial = (self.serial != other.serial).then(|| "serial port".to_owned());
        chips.chain(timer).chain(serial).collect()
    }
}

/// Has kvmclock go on so much further.
pub(crate) fn advance_clock(vm: &VmFd, by: u64) -> Result<(), CheckpointError> {
    let now = vm.get_clock().map_err(failed("get the clock"))?.clock;
    set_clock(vm, now.saturating_add(by))
}

fn set_clock(vm: &VmFd, clock: u64) -> Result<(), CheckpointError> {
    let clock = kvm_clock_data {
        clock,
        ..Default::default()
    };
    vm.set_clock(&clock).map_err(failed("set the clock"))
}

/// How long so many ticks of the TSC are.
pub(crate) fn nanoseconds(ticks: u64, khz: u32) -> u64 {
    let nanoseconds = u128::from(ticks) * 1_000_000 / u128::from(khz.max(1));
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

fn irqchips(vm: &VmFd) -> Result<Vec<kvm_irqchip>, CheckpointError> {
    IRQCHIPS
        .into_iter()
        .map(|chip_id| {
            let mut chip = kvm_irqchip {
                chip_id,
                ..Default::default()
            };
            vm.get_irqchip(&mut chip)
                .map_err(failed("get an interrupt controller"))?;
            Ok(chip)
        })
        .collect()
}

/// The whole union, whichever chip it is of.
fn bytes(chip: &kvm_irqchip) -> &[std::os::raw::c_char] {
    // SAFETY: the member covers the whole union, which was zeroed before KVM filled its part; any
    // bytes are valid characters.
    unsafe { &chip.chip.dummy }
}
