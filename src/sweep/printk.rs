//! What the kernel has printed and the console does not show yet.
//!
//! From an NMI, and with interrupts off, `printk` only notes its text, and has it put out by an irq_work that waits for the next
//! tick (`wake_up_klogd_work`, `IRQ_WORK_INIT_LAZY` in kernel/printk/printk.c, 7.3). In a trial ticks are late: it would
//! end before a warning is on the console. So the state of the ring of messages is looked at, and where that is not what
//! it was, the guest is let go on until the text is there.

use std::time::{Duration, Instant};

use unwindlab_vmm::Memory;

use super::guest::{Guest, Happening, SweepError};
use super::walk::pass;
use crate::runner::vcpu::{VcpuError, vcpu, word};

/// The head of `struct printk_ringbuffer` (kernel/printk/printk_ringbuffer.h, 7.3): sizes, pointers, and the numbers of the newest
/// and oldest message and byte, of which at least one changes with each message.
const HEAD: usize = 88;
const PAGE: u64 = 4096;

/// A state of the ring of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Printed {
    /// Guest-physical.
    at: u64,
    head: Vec<u8>,
}

impl Printed {
    /// That of a guest, one of whose vCPUs stands in the kernel; nothing where the kernel's symbols do not tell where the
    /// ring is.
    pub(super) fn of(guest: &mut Guest<'_>, index: u8) -> Result<Option<Self>, SweepError> {
        let Some(pointer) = guest.plan.symbols.printk else {
            return Ok(None);
        };
        let handle = vcpu(&mut guest.machine, index)?;
        let ring = word(&handle, pointer)?;
        let at = handle.translate(ring).map_err(VcpuError::from)?;
        let at = at.filter(|at| at % PAGE + HEAD as u64 <= PAGE);
        let memory = guest.machine.memory();
        Ok(at.and_then(|at| {
            Some(Self {
                at,
                head: head(memory, at)?,
            })
        }))
    }

    /// Whether something was printed since.
    pub(super) fn is_old(&self, memory: &Memory) -> bool {
        head(memory, self.at).is_none_or(|now| now != self.head)
    }
}

fn head(memory: &Memory, at: u64) -> Option<Vec<u8>> {
    let mut head = vec![0; HEAD];
    memory.read(at, &mut head).ok()?;
    Some(head)
}

/// A tick that is no longer late.
const SOON: Duration = Duration::from_millis(1);
/// A console that has not grown for so long does not grow.
const SLICE: Duration = Duration::from_millis(40);
/// The longest that is waited for a text.
const LIMIT: Duration = Duration::from_secs(2);
/// Bytes that tell what a report is of: its first lines. Each byte costs an exit, and a warning that comes at a thousand points
/// comes a thousand times.
const ENOUGH: u64 = 400;

/// Lets a guest whose trial is over go on until the first lines of what it prints are on its console. What it gets in its
/// rings meanwhile is of no trial.
pub(super) fn let_print(guest: &mut Guest<'_>, console: u64) -> Result<(), SweepError> {
    let until = Instant::now() + LIMIT;
    guest.break_at(&[])?;
    let ticks = guest.machine.postpone_timers(SOON);
    ticks.map_err(VcpuError::from)?;
    guest.start()?;
    let mut length = guest.machine.console().len();
    while Instant::now() < until {
        let slice = Instant::now() + SLICE;
        loop {
            match guest.next(slice)? {
                Happening::Nothing => break,
                Happening::End(_) => return stop(guest),
                other => pass(guest, &other, "while it prints")?,
            }
        }
        let now = guest.machine.console().len();
        if now >= console + ENOUGH || now > console && now == length {
            break;
        }
        length = now;
    }
    stop(guest)
}

fn stop(guest: &mut Guest<'_>) -> Result<(), SweepError> {
    guest.machine.pause_all().map_err(VcpuError::from)?;
    Ok(())
}
