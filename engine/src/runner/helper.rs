//! What the agent's helper does to workload threads: one command at a time, made when it says so.

use std::collections::VecDeque;

use unwindlab_abi::Command;
use unwindlab_oracle::trace::recording::VcpuPlace;

use super::blocks;
use super::error::TrialError;
use super::triggers::DueInjection;
use crate::driver::Driver;

/// A command that is given or waits to be.
#[derive(Debug)]
struct PendingCommand {
    due: DueInjection,
    /// Where the vCPU stood that met the trigger.
    place: VcpuPlace,
    thread: u32,
    command: Command,
}

/// The helper's commands.
#[derive(Debug, Default)]
pub struct Helper {
    waiting: VecDeque<PendingCommand>,
    under_way: Option<PendingCommand>,
    /// The number of the last command.
    number: u64,
}

impl Helper {
    /// Whether no command is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none()
    }

    /// The injection whose command is under way.
    pub fn under_way(&self) -> Option<u32> {
        self.under_way.as_ref().map(|given| given.due.spec)
    }

    /// Gives a command, or has it wait for those before it. `thread`: the one that it is for, if
    /// not the one that met the trigger.
    pub fn give(
        &mut self,
        driver: &mut Driver,
        due: DueInjection,
        command: Command,
        thread: Option<u32>,
    ) -> Result<(), TrialError> {
        let thread = thread.or(due.by.thread);
        let thread = thread.ok_or(TrialError::NoThread(due.spec))?;
        self.waiting.push_back(PendingCommand {
            due,
            place: driver.stop_and_look(due.vcpu)?,
            thread,
            command,
        });
        self.give_next(driver)
    }

    /// Gives the command that waits longest, unless one is under way.
    pub fn give_next(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        if self.under_way.is_some() {
            return Ok(());
        }
        let Some(next) = self.waiting.pop_front() else {
            return Ok(());
        };
        if next.command == Command::Release {
            blocks::end(driver, next.thread);
        }
        self.number += 1;
        let words = next.command.words(next.thread);
        let (shared, memory) = (&driver.session.shared, driver.machine.memory());
        shared
            .give_command(memory, self.number, words)
            .map_err(|_| TrialError::NoCommand(next.due.spec))?;
        self.under_way = Some(next);
        Ok(())
    }

    /// The helper says that it is done: the injection that was made, and where its vCPU stood.
    pub fn done(
        &mut self,
        driver: &Driver,
    ) -> Result<Option<(DueInjection, VcpuPlace)>, TrialError> {
        let Some(given) = self.under_way.take() else {
            return Ok(None);
        };
        let spec = given.due.spec;
        let (shared, memory) = (&driver.session.shared, driver.machine.memory());
        let errno = shared.command_errno(memory, self.number);
        let errno = errno.ok_or(TrialError::NoCommand(spec))?;
        if errno != 0 {
            let error = i32::try_from(errno).unwrap_or(i32::MAX);
            return Err(TrialError::Command {
                spec,
                source: std::io::Error::from_raw_os_error(error),
            });
        }
        Ok(Some((given.due, given.place)))
    }
}
