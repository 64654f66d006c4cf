//! A warm `unwindlab run` as a user has it: from a saved machine, against one that boots (`--fresh`), in turn.

use std::ffi::OsString;

use super::{Better, Commands, Line, PeerSeries, Promise, Row};
use crate::bench::against::host_kind;
use crate::bench::command::CommandError;
use crate::bench::series::Series;

/// The scenario of [`Row::Warm`], and the one whose runs leave a saved machine.
const SCENARIO: &str = "nmi-in-syscall";
/// Runs until a machine is saved with its guests: one boots, one sees the kernel again, and some to spare.
const WARM_UPS: u32 = 4;
/// What a KVM host is called that goes on from a machine with guests.
const WITH_GUESTS: &str = ", saved with guests;";
/// One that goes on from a machine with or without.
const SAVED: &str = ", saved";
/// One that has nothing to be saved.
const NATIVE: &str = "native";

/// Why a run is no measurement.
#[derive(Debug, thiserror::Error)]
enum SavedError {
    /// The command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// It does not say on which KVM host it ran.
    #[error("it does not name its KVM host")]
    NoHost,
    /// However often it runs, no machine is saved.
    #[error("after {WARM_UPS} runs no machine is saved with its guests: KVM host {0}")]
    NotSaved(String),
    /// It ran on another host than the one that is to be measured.
    #[error("it ran on another KVM host than it was to: {0}")]
    OtherHost(String),
}

impl Commands<'_> {
    /// One scenario.
    #[must_use]
    pub fn warm(&self) -> Line {
        let promises = vec![Promise::AtMost(12.0), Promise::RatioAtMost(0.1)];
        let what = "warm `unwindlab run` of one scenario, start to exit";
        self.line((Row::Warm, what), &[SCENARIO], promises, None)
    }

    /// The whole library, of so many scenarios.
    #[must_use]
    pub fn library(&self, scenarios: usize) -> Line {
        let of = format!("{scenarios} scenarios");
        let what = "warm `unwindlab run` of the whole library, start to exit";
        self.line(
            (Row::Library, what),
            &[],
            vec![Promise::AtMost(60.0)],
            Some(of),
        )
    }

    fn line(
        &self,
        (row, what): (Row, &'static str),
        scenarios: &[&str],
        promises: Vec<Promise>,
        of: Option<String>,
    ) -> Line {
        let (mut saved, mut fresh) = (Series::default(), Series::default());
        let host = self.warm_up();
        if let Err(why) = &host {
            saved.fail(why);
            fresh.fail(why);
        }
        let host = host.unwrap_or_default();
        let is_native = host.starts_with(NATIVE);
        let mark = match row {
            _ if is_native => NATIVE,
            Row::Warm => WITH_GUESTS,
            // The host that is named is the last scenario's, which may be on a machine of its own kind.
            _ => SAVED,
        };
        for round in 0..self.rounds {
            self.tell(row, round);
            let from_saved = round % 2 == 0;
            for from_saved in [from_saved, !from_saved] {
                match from_saved {
                    true => saved.take(|| self.seconds(scenarios, Some(mark))),
                    false if is_native => {}
                    false => fresh.take(|| self.seconds(scenarios, None)),
                }
            }
        }
        let mut parameters = vec![self.words(scenarios), host_kind(&host)];
        let mut notes = Vec::new();
        parameters.extend(of);
        if is_native {
            notes
                .push("a native KVM host has no saved machine: nothing to compare with".to_owned());
        }
        Line {
            row,
            what,
            unit: "s",
            better: Better::Less,
            ours: saved,
            peer: (!is_native).then_some(PeerSeries {
                name: "--fresh",
                series: fresh,
            }),
            promises,
            notes,
            parameters,
        }
    }

    /// Runs a scenario until its machine is saved; the KVM host.
    fn warm_up(&self) -> Result<String, SavedError> {
        let mut host = String::new();
        for _ in 0..WARM_UPS {
            self.progress.step("a run that leaves a saved machine");
            let ended = self.run(&[SCENARIO], &[])?;
            ended
                .kvm_host()
                .ok_or(SavedError::NoHost)?
                .clone_into(&mut host);
            if host.contains(WITH_GUESTS) || host.starts_with(NATIVE) {
                return Ok(host);
            }
        }
        Err(SavedError::NotSaved(host))
    }

    /// Seconds of a run on a KVM host whose name has this; without it, of one that boots.
    fn seconds(&self, scenarios: &[&str], is_saved: Option<&str>) -> Result<f64, SavedError> {
        let fresh = [OsString::from("--fresh")];
        let more: &[OsString] = match is_saved {
            Some(_) => &[],
            None => &fresh,
        };
        let ended = self.run(scenarios, more)?;
        let host = ended.kvm_host().ok_or(SavedError::NoHost)?;
        let is_right = match is_saved {
            Some(mark) => host.contains(mark),
            None => !host.contains(SAVED),
        };
        match is_right {
            true => Ok(ended.seconds),
            false => Err(SavedError::OtherHost(host.to_owned())),
        }
    }
}
