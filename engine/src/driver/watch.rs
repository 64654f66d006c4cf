//! How a guest ended: whether it panicked, hangs, is merely slow, or was lost by the KVM host.

use std::time::{Duration, Instant};

use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_vmm::{Machine, Stop};

use super::look::PAGE;
use super::{Driver, DriverError};

/// What the console says when a kernel is beyond help.
const PANIC_LINES: [&str; 2] = ["Kernel panic - not syncing", "Oops: "];
/// How long a guest that ran out of time is watched for progress: much longer than any timer tick, for a KVM host
/// that gets little of its CPUs runs no guest for a second.
const WATCH: Duration = Duration::from_secs(3);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// A look that took longer does not count: where this process got no CPU, the guest got none either.
const LATE: Duration = Duration::from_millis(150);
/// After so long it is called slow, however little of that it was watched.
const WATCH_LONGEST: Duration = Duration::from_secs(15);

/// The console, lossily decoded.
pub(super) fn console_text(machine: &Machine) -> String {
    String::from_utf8_lossy(&machine.console().snapshot()).replace('\r', "")
}

/// The end of a guest that died without a word. On a KVM in TCG, triple faults were seen in guests that do not fault
/// when they go the same way again, and guests that the host lost. KVM resets the vCPU before anybody can look where it
/// stood.
fn silent(line: String) -> TrialEnd {
    match unwindlab_vmm::on_tcg() {
        true => TrialEnd::Silent { line },
        false => TrialEnd::Panic { line },
    }
}

/// Whether an oops may be the host's. A kernel that patches its code puts an `int3` there meanwhile, and its handler knows of it
/// as long as another CPU may meet it (`smp_text_poke_batch_finish()`, arch/x86/kernel/alternative.c). QEMU's TCG lets a CPU meet it
/// later: the outer kernel, which runs on no KVM of ours, has died so.
fn may_be_stale(line: &str, vcpus: u8) -> bool {
    line.contains("Oops: int3: ") && vcpus > 1
}

impl Driver {
    /// The end that a stop means which is neither the driver's nor the agent's.
    pub(super) fn ended_by(&mut self, index: u8, stop: &Stop) -> Result<TrialEnd, DriverError> {
        Ok(match stop {
            // A panic with panic=-1 reboots by triple fault; the console knows the reason.
            Stop::Shutdown | Stop::Reset { .. } | Stop::SystemEvent { .. } => {
                match (self.panicked(), self.lost()?) {
                    (Some(end), _) | (None, Some(end)) => end,
                    (None, None) => silent(format!(
                        "triple fault or reset on vCPU {index}, nothing on the console"
                    )),
                }
            }
            Stop::BadAccess { what } => self.misbehaved(format!("the guest makes a {what}"))?,
            Stop::InternalError { pc, .. } if self.runs_wild(index, *pc)? => {
                match (self.panicked(), self.lost()?) {
                    (Some(end), _) | (None, Some(end)) => end,
                    (None, None) => TrialEnd::Panic {
                        line: format!(
                            "vCPU {index} executes at {pc:#x}, where the guest has no code"
                        ),
                    },
                }
            }
            Stop::FailEntry { .. } if self.is_broken_by_sysenter(index)? => TrialEnd::Infra {
                reason: format!(
                    "the emulated KVM host lost vCPU {index}: it left the guest right behind \
                     sysenter, as for an interrupt of its own"
                ),
            },
            other => TrialEnd::Infra {
                reason: format!("vCPU {index} stopped: {other:?}"),
            },
        })
    }

    /// The end of a guest that does what none does: its own words come first, and what the KVM host may have done.
    pub fn misbehaved(&mut self, what: String) -> Result<TrialEnd, DriverError> {
        Ok(match (self.panicked(), self.lost()?) {
            (Some(end), _) | (None, Some(end)) => end,
            (None, None) => TrialEnd::Misbehaved { what },
        })
    }

    /// Whether an instruction of which KVM knows nothing is where no kernel has any: where there is no RAM, or in 16-bit
    /// code after the agent has called.
    fn runs_wild(&mut self, index: u8, pc: u64) -> Result<bool, DriverError> {
        const PROTECTED: u64 = 1;
        let vcpu = self.vcpu(index)?;
        let is_16_bit = vcpu.sregs()?.cr0 & PROTECTED == 0;
        let at = vcpu.translate(pc)?;
        if is_16_bit && self.session.has_begun() {
            return Ok(true);
        }
        let memory = self.machine.memory();
        Ok(at.is_none_or(|at| memory.read(at, &mut [0]).is_err()))
    }

    /// Whether the host has left a vCPU as no CPU is, which QEMU's TCG does at `sysenter`: with CS
    /// of 64-bit and of 32-bit code. Where an exit led to the harness, that has been mended.
    fn is_broken_by_sysenter(&mut self, index: u8) -> Result<bool, DriverError> {
        let cs = self.vcpu(index)?.sregs()?.cs;
        Ok(unwindlab_vmm::on_tcg() && cs.l != 0 && cs.db != 0)
    }

    /// The end that the console tells of, if it tells of one.
    pub fn panicked(&self) -> Option<TrialEnd> {
        let text = console_text(&self.machine);
        // A line that is still being written does not count: its end says what went wrong.
        let (lines, _partial) = text.rsplit_once('\n')?;
        let line = lines
            .lines()
            .find(|l| PANIC_LINES.iter().any(|p| l.contains(p)))?;
        let line = line.trim().to_owned();
        Some(match may_be_stale(&line, self.machine.vcpu_count()) {
            true => silent(line),
            false => TrialEnd::Panic { line },
        })
    }

    /// The end of a guest of which a vCPU has its page tables where the guest has no RAM. The KVM host may have lost it:
    ///
    /// QEMU's TCG (seen with 10.0.13) now and then leaves the state of the outer kernel in the
    /// guest's control block: CR3, the stack pointer and the instruction pointer (in the code that
    /// enters the guest) are the outer ones, and the vCPU faults for ever. No other host is known
    /// to do so; there it is the guest's doing.
    pub fn lost(&mut self) -> Result<Option<TrialEnd>, DriverError> {
        for index in 0..self.machine.vcpu_count() {
            let (rip, cr3) =
                self.while_stopped(index, |vcpu| Ok((vcpu.regs()?.rip, vcpu.sregs()?.cr3)))?;
            let tables = cr3 & !(PAGE - 1);
            if self.machine.memory().read(tables, &mut [0]).is_err() {
                let where_it_is = format!(
                    "vCPU {index}: its page tables are at {tables:#x}, where the guest has no RAM, \
                     and it stands at {rip:#x}"
                );
                return Ok(Some(silent(where_it_is)));
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
        let begin = Instant::now();
        let mut watched = Duration::ZERO;
        while watched < WATCH {
            let look = Instant::now();
            // It may run only while it is waited for, and what it stops for is not its standing still.
            let happening = self.next(look + LOOK)?;
            match self.pass(happening)? {
                Some(TrialEnd::Completed) => return Ok(TrialEnd::Timeout),
                Some(end) => return Ok(end),
                None => {}
            }
            if moved(self) != before || begin.elapsed() > WATCH_LONGEST {
                return Ok(TrialEnd::Timeout);
            }
            let took = look.elapsed();
            if took < LATE {
                watched += took;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_int3_that_another_vcpu_may_have_taken_away_is_the_hosts_perhaps() {
        let int3 = "[    3.141592] Oops: int3: 0000 [#1] SMP NOPTI";
        let other = "[    3.141592] Oops: invalid opcode: 0000 [#1] SMP NOPTI";
        assert!(may_be_stale(int3, 2));
        assert!(!may_be_stale(int3, 1) && !may_be_stale(other, 2));
    }
}
