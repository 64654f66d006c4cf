//! Which device answers at which I/O port.

use std::ops::RangeInclusive;

use super::serial::{self, Uart};

/// The port of the `out` that replaces the instruction behind `sysenter` ([`crate::sysenter`]).
pub(crate) const SYSENTER_PORT: u16 = 0xf4;
/// The port of the `out` that replaces a return to user mode ([`crate::returns`]).
pub(crate) const RETURN_PORT: u16 = 0xf5;
/// The port of the `out` that replaces `RDPMC` ([`crate::pmu`]). No PC device has this port or
/// the next one, and Linux does not use them.
pub(crate) const RDPMC_PORT: u16 = 0xf6;
/// The port of the `out` that is a planted trap ([`crate::traps`]).
pub(crate) const TRAP_PORT: u16 = 0xf7;

/// The keyboard controller's command port...
const I8042_COMMAND: u16 = 0x64;
/// ... and its command that pulls the reset line.
const I8042_RESET: u8 = 0xfe;
/// The chipset's reset control register...
const RESET_CONTROL: u16 = 0xcf9;
/// ... and its bit that resets.
const RESET_NOW: u8 = 1 << 2;

/// Ports that KVM or a device of this crate answers: PICs, PIT, port B (0x61), the keyboard
/// controller's command port, the PICs' mode registers, COM1, the reset register; and that of
/// traps.
const TAKEN: [RangeInclusive<u16>; 9] = [
    0x20..=0x21,
    0x40..=0x43,
    0x61..=0x61,
    I8042_COMMAND..=I8042_COMMAND,
    0xa0..=0xa1,
    TRAP_PORT..=TRAP_PORT,
    serial::PORT..=serial::PORT + 7,
    0x4d0..=0x4d1,
    RESET_CONTROL..=RESET_CONTROL,
];

/// What follows from a guest's `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// Nothing: the device has the data.
    Done,
    /// The caller gets the data.
    Doorbell,
    /// The guest requests a reset of the machine.
    Reset,
}

/// All I/O ports of a machine.
#[derive(Debug)]
pub(crate) struct Ports {
    uart: Uart,
    doorbell: RangeInclusive<u16>,
}

impl Ports {
    /// Fails with the first port of `doorbell` that belongs to a device.
    pub(crate) fn new(uart: Uart, doorbell: RangeInclusive<u16>) -> Result<Self, u16> {
        match doorbell
            .clone()
            .find(|port| TAKEN.iter().any(|taken| taken.contains(port)))
        {
            Some(port) => Err(port),
            None => Ok(Self { uart, doorbell }),
        }
    }

    /// The serial port.
    pub(crate) fn uart(&self) -> &Uart {
        &self.uart
    }

    /// The guest writes `data`: `data.len() / size` items of `size` bytes, one after the other.
    pub(crate) fn write(&self, port: u16, size: u8, data: &[u8]) -> WriteEffect {
        if self.doorbell.contains(&port) {
            return WriteEffect::Doorbell;
        }
        if size != 1 {
            return WriteEffect::Done;
        }
        match (port, uart_register(port)) {
            (_, Some(register)) => data
                .iter()
                .for_each(|byte| self.uart.write(register, *byte)),
            (I8042_COMMAND, _) if data.contains(&I8042_RESET) => return WriteEffect::Reset,
            (RESET_CONTROL, _) if data.iter().any(|byte| byte & RESET_NOW != 0) => {
                return WriteEffect::Reset;
            }
            _ => {}
        }
        WriteEffect::Done
    }

    /// The guest reads. A port without a device reads as all ones, as on a bus without one; so
    /// does a byte-wide device when more than one byte is read at a time.
    pub(crate) fn read(&self, port: u16, data: &mut [u8]) {
        match (uart_register(port), data) {
            (Some(register), [byte]) => *byte = self.uart.read(register),
            (_, data) => data.fill(0xff),
        }
    }
}

fn uart_register(port: u16) -> Option<u8> {
    let register = port.checked_sub(serial::PORT)?;
    u8::try_from(register)
        .ok()
        .filter(|register| *register < serial::PORTS)
}

#[cfg(test)]
mod tests {
    use super::super::serial::{Console, IrqLine};
    use super::*;
    use vmm_sys_util::eventfd::EventFd;

    fn ports(doorbell: RangeInclusive<u16>) -> (Result<Ports, u16>, Console) {
        let console = Console::default();
        let irq = IrqLine(EventFd::new(0).unwrap());
        (
            Ports::new(Uart::new(irq, console.clone()).unwrap(), doorbell),
            console,
        )
    }

    #[test]
    fn each_port_has_its_device() {
        let (ports, console) = ports(0x510..=0x511);
        let ports = ports.unwrap();
        assert_eq!(ports.write(0x3f8, 1, b"hi"), WriteEffect::Done);
        assert_eq!(console.snapshot(), b"hi");
        assert_eq!(ports.write(0x511, 4, &[1, 2, 3, 4]), WriteEffect::Doorbell);
        assert_eq!(ports.write(0x512, 4, &[1, 2, 3, 4]), WriteEffect::Done);
        assert_eq!(ports.write(0x64, 1, &[0xfe]), WriteEffect::Reset);
        assert_eq!(ports.write(0x64, 1, &[0x20]), WriteEffect::Done);
        assert_eq!(ports.write(0xcf9, 1, &[6]), WriteEffect::Reset);
        assert_eq!(ports.write(0xcf9, 1, &[2]), WriteEffect::Done);
        let mut data = [0; 4];
        ports.read(0xcfc, &mut data);
        assert_eq!(data, [0xff; 4]);
        ports.read(0x3fd, &mut data[..1]);
        assert_eq!(data[0] & 0x60, 0x60, "transmitter empty");
    }

    #[test]
    fn a_doorbell_takes_no_port_of_a_device() {
        assert_eq!(ports(0x60..=0x70).0.map(|_| ()), Err(0x61));
        assert_eq!(ports(0x3ff..=0x3ff).0.map(|_| ()), Err(0x3ff));
        assert_eq!(ports(0x10..=0xffff).0.map(|_| ()), Err(0x20));
    }
}
