//! The serial console: a 16550 that keeps its output for the caller.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vm_superio::serial::NoEvents;
use vm_superio::{Serial, SerialState, Trigger};
use vmm_sys_util::eventfd::EventFd;

/// First port of COM1.
pub(crate) const PORT: u16 = 0x3f8;
/// Ports of a 16550.
pub(crate) const PORTS: u8 = 8;
/// COM1's interrupt line.
pub(crate) const IRQ: u32 = 4;

/// Bytes of console output kept. Where they do not suffice, the oldest half is dropped.
pub const CONSOLE_LIMIT: usize = 8 << 20;

/// Everything the guest wrote to its serial port. Cheap to clone; readable at any time.
#[derive(Debug, Clone, Default)]
pub struct Console {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Console {
    /// Bytes written so far, dropped ones included.
    pub fn len(&self) -> u64 {
        let log = self.lock();
        log.dropped.saturating_add(log.bytes.len() as u64)
    }

    /// Whether the guest has written nothing so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes dropped because the guest wrote more than [`CONSOLE_LIMIT`].
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// A copy of the bytes kept.
    pub fn snapshot(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// The bytes written after `position` (an earlier value of [`len`](Self::len)) and kept.
    pub fn since(&self, position: u64) -> Vec<u8> {
        let log = self.lock();
        let skip = usize::try_from(position.saturating_sub(log.dropped)).unwrap_or(usize::MAX);
        log.bytes.get(skip..).unwrap_or_default().to_vec()
    }

    /// Removes the bytes written after `position`.
    pub fn cut(&self, position: u64) {
        let mut log = self.lock();
        let keep = position.saturating_sub(log.dropped);
        log.bytes
            .truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// The log is bytes and a counter, consistent at every moment: it can be read even if
    /// another holder of the lock panicked.
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.lock();
        if log.bytes.len().saturating_add(bytes.len()) > CONSOLE_LIMIT {
            let gone = (CONSOLE_LIMIT / 2).min(log.bytes.len());
            log.bytes.drain(..gone);
            log.dropped = log.dropped.saturating_add(gone as u64);
        }
        log.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The interrupt line of the UART.
#[derive(Debug)]
pub(crate) struct IrqLine(pub EventFd);

impl Trigger for IrqLine {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// The 16550. Every vCPU's thread may access it.
pub(crate) struct Uart {
    device: Mutex<Serial<IrqLine, NoEvents, Console>>,
    irq: EventFd,
    console: Console,
}

impl std::fmt::Debug for Uart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Uart").finish_non_exhaustive()
    }
}

impl Uart {
    /// Fails if the interrupt line cannot be duplicated.
    pub(crate) fn new(irq: IrqLine, console: Console) -> io::Result<Self> {
        Ok(Self {
            irq: irq.0.try_clone()?,
            device: Mutex::new(Serial::new(irq, console.clone())),
            console,
        })
    }

    /// Its registers.
    pub(crate) fn state(&self) -> SerialState {
        self.lock().state()
    }

    /// Restores its registers. The console keeps what was printed. Fails if `state` is not one of
    /// [`state`](Self::state), or the interrupt line cannot be raised.
    pub(crate) fn set_state(&self, state: &SerialState) -> io::Result<()> {
        let line = IrqLine(self.irq.try_clone()?);
        let device = Serial::from_state(state, line, NoEvents, self.console.clone())
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
        *self.lock() = device;
        Ok(())
    }

    /// The guest writes `value` to register `offset`.
    pub(crate) fn write(&self, offset: u8, value: u8) {
        // If an interrupt cannot be raised, the guest misses it; its driver polls. A full
        // loop-back queue is the guest's problem.
        if let Err(error) = self.lock().write(offset, value) {
            tracing::debug!("serial port: {error:?}");
        }
    }

    /// The guest reads register `offset`.
    pub(crate) fn read(&self, offset: u8) -> u8 {
        self.lock().read(offset)
    }

    fn lock(&self) -> MutexGuard<'_, Serial<IrqLine, NoEvents, Console>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_positions_stay_right() {
        let mut console = Console::default();
        assert!(console.is_empty());
        console.write_all(b"hello ").unwrap();
        let position = console.len();
        console.write_all(b"world").unwrap();
        assert_eq!(console.since(position), b"world");
        assert_eq!(console.since(console.len()), b"");
        assert_eq!(console.since(u64::MAX), b"");
        for _ in 0..9 {
            console.write_all(&vec![b'x'; 1 << 20]).unwrap();
        }
        assert!(console.dropped() > 0);
        assert_eq!(console.len(), 11 + (9 << 20));
        assert!(console.snapshot().len() <= CONSOLE_LIMIT);
        let position = console.len();
        console.write_all(b"end").unwrap();
        assert_eq!(console.since(position), b"end");
    }
}
