//! How a guest ended: whether it panicked, hangs, is merely slow, or was lost by the KVM host.

use std::time::Duration;

use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_vmm::{Machine, Stop};

use super::look::PAGE;
use super::{Driver, DriverError};

/// What the console says when a kernel is beyond help.
const PANIC_LINES: [&str; 2] = ["Kernel panic - not syncing", "Oops: "];
/// How long a guest that ran out of time is watched for progress: longer than any timer tick.
const WATCH: Duration = Duration::from_millis(500);
/// The end of a guest whose console explains nothing.
const TRIPLE_FAULT: &str = "triple fault or reset";

/// The console, lossily decoded.
pub(super) fn console_text(machine: &Machine) -> String {
    String::from_utf8_lossy(&machine.console().snapshot()).replace('\r', "")
}

/// The end as the KVM host's failure, where it may be that: a triple fault without a word on the
/// console, on a KVM in TCG. Such triple faults were seen there in guests that do not fault when
/// they go the same way again. KVM resets the vCPU before anybody can look where it stood.
pub(crate) fn host_may_have(end: &TrialEnd) -> Option<TrialEnd> {
    match end {
        TrialEnd::Panic { line } if line.starts_with(TRIPLE_FAULT) && unwindlab_vmm::on_tcg() => {
            Some(TrialEnd::Infra {
                reason: format!(
                    "{line}: the emulated KVM host's doing, most likely; run it again: what comes \
                     again is the kernel's"
                ),
            })
        }
        _ => None,
    }
}

impl Driver {
    /// The end that a stop means which is neither the driver's nor the agent's.
    pub(super) fn ended_by(&mut self, index: u8, stop: &Stop) -> Result<TrialEnd, DriverError> {
        Ok(match stop {
            // A panic with panic=-1 reboots by triple fault; the console knows the reason.
            Stop::Shutdown | Stop::Reset { .. } | Stop::SystemEvent { .. } => {
                match (self.panicked(), self.lost()?) {
                    (Some(end), _) | (None, Some(end)) => end,
                    (None, None) => TrialEnd::Panic {
                        line: format!("{TRIPLE_FAULT} on vCPU {index}, nothing on the console"),
                    },
                }
            }
            other => TrialEnd::Infra {
                reason: format!("vCPU {index} stopped: {other:?}"),
            },
        })
    }

    /// The end that the console tells of, if it tells of one.
    pub fn panicked(&self) -> Option<TrialEnd> {
        let text = console_text(&self.machine);
        // A line that is still being written does not count: its end says what went wrong.
        let (lines, _partial) = text.rsplit_once('\n')?;
        let line = lines
            .lines()
            .find(|l| PANIC_LINES.iter().any(|p| l.contains(p)))?;
        Some(TrialEnd::Panic {
            line: line.trim().to_owned(),
        })
    }

    /// The end of a guest of which the KVM host lost a vCPU: its page tables are not in the guest's
    /// RAM.
    ///
    /// QEMU's TCG (seen with 10.0.13) now and then leaves the state of the outer kernel in the
    /// guest's control block: CR3, the stack pointer and the instruction pointer (in the code that
    /// enters the guest) are the outer ones, and the vCPU faults for ever. No other host is known
    /// to do so; there it counts as the guest's.
    pub fn lost(&mut self) -> Result<Option<TrialEnd>, DriverError> {
        if !unwindlab_vmm::on_tcg() {
            return Ok(None);
        }
        for index in 0..self.machine.vcpu_count() {
            let (rip, cr3) =
                self.while_stopped(index, |vcpu| Ok((vcpu.regs()?.rip, vcpu.sregs()?.cr3)))?;
            let tables = cr3 & !(PAGE - 1);
            if self.machine.memory().read(tables, &mut [0]).is_err() {
                return Ok(Some(TrialEnd::Infra {
                    reason: format!(
                        "the emulated KVM host lost vCPU {index}: its page tables are at \
                         {tables:#x}, where the guest has no RAM, and it stands at {rip:#x}"
                    ),
                }));
            }
        }
        Ok(None)
    }

    /// The end of a guest whose agent did not come to Ready within `limit`.
    pub fn no_boot(&mut self, limit: Duration) -> Result<TrialEnd, DriverError> {
        let places = self.places()?;
        if let Some(lost) = self.lost()? {
            return Ok(lost);
        }
        let console = console_text(&self.machine);
        let last = console.trim_end().lines().next_back();
        let last = last.unwrap_or("nothing on the console");
        Ok(TrialEnd::BootError {
            reason: format!("no agent after {} s; last line: {last}", limit.as_secs()),
            places,
        })
    }

    /// The end of a guest whose time is over: a hang where neither user mode nor the console moves
    /// any more, otherwise a timeout.
    pub fn out_of_time(&mut self) -> Result<TrialEnd, DriverError> {
        let moved = |driver: &Self| (driver.progress(), driver.machine.console().len());
        let before = moved(self);
        std::thread::sleep(WATCH);
        if moved(self) != before {
            return Ok(TrialEnd::Timeout);
        }
        match self.lost()? {
            Some(lost) => Ok(lost),
            None => self.hang(),
        }
    }

    /// The end of a guest that stands still.
    pub fn stands_still(&mut self) -> Result<TrialEnd, DriverError> {
        if let Some(panic) = self.panicked() {
            return Ok(panic);
        }
        match self.lost()? {
            Some(lost) => Ok(lost),
            None => self.hang(),
        }
    }

    fn hang(&mut self) -> Result<TrialEnd, DriverError> {
        Ok(TrialEnd::Hang {
            places: self.places()?,
        })
    }
}
