//! What the agent's helper does to workload threads: one command at a time, made when it says so.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use unwindlab_abi::Command;

use super::actions::{Found, Made};
use super::arrivals::Who;
use super::error::TrialError;
use super::trial::Trial;
use crate::driver::watch;
use unwindlab_oracle::trace::recording::{Block, TrialEnd};

/// How long the helper may take, which looks for commands every 200 us of the guest's time.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A command that is given or waits to be.
#[derive(Debug)]
struct Given {
    spec: u32,
    /// The vCPU that met the trigger.
    index: u8,
    who: Who,
    thread: u32,
    command: Command,
    found: Found,
}

/// All of a trial.
#[derive(Debug, Default)]
pub struct Commands {
    waiting: VecDeque<Given>,
    under_way: Option<(Given, Instant)>,
    number: u64,
}

impl Commands {
    /// Nothing is under way.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none()
    }
}

impl Trial<'_> {
    /// Gives a command, or has it wait for those before it.
    pub(super) fn command(
        &mut self,
        spec: u32,
        index: u8,
        who: Who,
        command: Command,
        thread: Option<u32>,
    ) -> Result<(), TrialError> {
        let thread = thread.or(who.thread).ok_or(TrialError::NoThread(spec))?;
        let found = self.on_stopped(index, |_| Ok(()))?;
        self.commands.waiting.push_back(Given {
            spec,
            index,
            who,
            thread,
            command,
            found,
        });
        self.next_command()
    }

    fn next_command(&mut self) -> Result<(), TrialError> {
        if self.commands.under_way.is_some() {
            return Ok(());
        }
        let Some(given) = self.commands.waiting.pop_front() else {
            return Ok(());
        };
        if given.command == Command::Release {
            self.end_block(given.thread);
        }
        self.commands.number += 1;
        let words = given.command.words(given.thread);
        let number = self.commands.number;
        self.session
            .give_command(self.machine.memory(), number, words)
            .map_err(|_| TrialError::NoCommand(given.spec))?;
        self.commands.under_way = Some((given, Instant::now()));
        Ok(())
    }

    /// The helper says that it is done.
    pub(super) fn commanded(&mut self) -> Result<(), TrialError> {
        let Some((given, _)) = self.commands.under_way.take() else {
            return Ok(());
        };
        let errno = self
            .session
            .command_errno(self.machine.memory(), self.commands.number)
            .ok_or(TrialError::NoCommand(given.spec))?;
        if errno != 0 {
            let error = i32::try_from(errno).unwrap_or(i32::MAX);
            return Err(TrialError::Command {
                spec: given.spec,
                source: std::io::Error::from_raw_os_error(error),
            });
        }
        let mut now = Vec::new();
        let made = Made {
            who: given.who,
            exact: false,
        };
        self.note_made(given.spec, given.found, made);
        self.follow(given.spec, given.index, given.who, &mut now);
        for (spec, index, who) in now.into_iter().rev() {
            self.act(spec, index, who)?;
        }
        // Before the one who says so goes on: what follows may be due at its next instruction.
        self.refresh_breakpoints()?;
        self.next_command()
    }

    /// The end of a trial whose helper did not come to do what it was told while a vCPU stood still.
    pub(super) fn helper_waits(&mut self, frozen: u8) -> Result<TrialEnd, TrialError> {
        let given = self
            .commands
            .under_way
            .as_ref()
            .map(|(given, _)| given.spec);
        let what = given.and_then(|spec| self.plan.injections.get(spec as usize));
        let places: Vec<String> = watch::places(&mut self.machine)?
            .iter()
            .map(|it| format!("vCPU {} at {:#x}", it.vcpu, it.rip))
            .collect();
        Ok(TrialEnd::Infra {
            reason: format!(
                "{} was not made while vCPU {frozen} stood still: the helper's CPU waits for it, most \
                 likely ({})",
                what.map_or("a command", |it| it.name.as_str()),
                places.join(", ")
            ),
        })
    }

    /// A helper that does not answer cannot be waited for.
    pub(super) fn check_command(&self) -> Result<(), TrialError> {
        match &self.commands.under_way {
            Some((given, since)) if since.elapsed() > ANSWER_LIMIT => {
                Err(TrialError::NoAnswer(given.spec))
            }
            _ => Ok(()),
        }
    }

    /// Somebody waits for a page of the thread's stack.
    pub(super) fn begin_block(&mut self, thread: u32) {
        self.session.drain(self.machine.memory());
        let progress = self.session.progress(self.machine.memory());
        let records = self.session.ring_records();
        self.session.recording.blocks.push(Block {
            thread,
            // The thread's own code does not touch the stack between the two.
            in_kernel: self.arrivals.in_iteration(thread),
            progress_before: progress,
            progress_after: Vec::new(),
            records_before: records,
            records_after: Vec::new(),
        });
    }

    fn end_block(&mut self, thread: u32) {
        self.session.drain(self.machine.memory());
        let progress = self.session.progress(self.machine.memory());
        let records = self.session.ring_records();
        let blocks = self.session.recording.blocks.iter_mut();
        if let Some(block) = { blocks }.rfind(|it| it.thread == thread) {
            block.progress_after = progress;
            block.records_after = records;
        }
    }
}
