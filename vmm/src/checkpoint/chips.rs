//! The state that the vCPUs share: interrupt controllers, timer, clock, serial port.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
    kvm_pit_channel_state, kvm_pit_state2,
};
use kvm_ioctls::VmFd;
use vm_superio::SerialState;

use super::{CheckpointError, failed};
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
    serial: SerialState,
}

impl Chips {
    /// Reads it.
    pub(crate) fn of(vm: &VmFd, uart: &Uart) -> Result<Self, CheckpointError> {
        Ok(Self {
            irqchips: irqchips(vm)?,
            pit: vm.get_pit2().map_err(failed("get the timer"))?,
            clock: vm.get_clock().map_err(failed("get the clock"))?.clock,
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
        let clock = kvm_clock_data {
            clock: self.clock,
            ..Default::default()
        };
        vm.set_clock(&clock).map_err(failed("set the clock"))?;
        Ok(())
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
