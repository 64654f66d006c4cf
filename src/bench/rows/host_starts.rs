//! Starts of the KVM host, each with a machine of its own: how long they take, and how many machines died.

use std::error::Error;
use std::time::Instant;

use unwindlab_engine::plan::Executor;

use super::{Better, Line, Row};
use crate::bench::series::Series;

/// Starts it `rounds` times, up to the first that does not come up.
pub fn host_starts<E: Error>(
    rounds: u32,
    mut start: impl FnMut(u32) -> Result<Box<dyn Executor>, E>,
) -> Line {
    let (mut seconds, mut deaths, mut kinds) = (Series::default(), 0, Vec::new());
    for round in 0..rounds {
        seconds.take(|| {
            let begin = Instant::now();
            let host = start(round)?;
            let took = begin.elapsed();
            deaths += host.deaths();
            if host.deaths() > 0 {
                kinds.push(host.host());
            }
            Ok::<_, E>(took.as_secs_f64())
        });
    }
    let up = seconds.values.len();
    let mut notes = vec![format!(
        "{up} of {rounds} came up; {deaths} machines died in their boot and were started again"
    )];
    notes.append(&mut kinds);
    Line {
        row: Row::HostStarts,
        what: "start of the KVM host, to its hello",
        unit: "s",
        better: Better::Less,
        ours: seconds,
        peer: None,
        promises: Vec::new(),
        notes,
        parameters: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_engine::plan::sweep::{Message, SweepPlan};
    use unwindlab_engine::plan::{InfraError, Progress, TrialPlan};
    use unwindlab_oracle::trace::Recording;

    /// A host before which so many machines died.
    struct Host(usize);

    impl Executor for Host {
        fn host(&self) -> String {
            "started again: int3".to_owned()
        }

        fn deaths(&self) -> usize {
            self.0
        }

        fn run(&mut self, _: &TrialPlan, _: &dyn Progress) -> Result<Recording, InfraError> {
            Err(none())
        }

        fn sweep(
            &mut self,
            _: &SweepPlan,
            _: &mut dyn FnMut(Message) -> bool,
        ) -> Result<(), InfraError> {
            Err(none())
        }
    }

    fn none() -> InfraError {
        InfraError {
            reason: "none came up".to_owned(),
            console: String::new(),
        }
    }

    #[test]
    fn machines_that_died_are_counted_and_named() {
        let line = host_starts(3, |round| {
            Ok::<_, InfraError>(Box::new(Host(usize::from(round == 1) * 2)) as Box<dyn Executor>)
        });
        assert!(line.is_measured());
        assert_eq!(
            line.notes,
            [
                "3 of 3 came up; 2 machines died in their boot and were started again",
                "started again: int3"
            ]
        );
    }

    #[test]
    fn a_host_that_does_not_come_up_is_no_measurement() {
        let line = host_starts(3, |round| match round {
            0 => Ok(Box::new(Host(0)) as Box<dyn Executor>),
            _ => Err(none()),
        });
        assert!(!line.is_measured());
        assert_eq!(line.ours.failed.as_deref(), Some("none came up"));
        assert!(line.notes[0].starts_with("1 of 3 came up"));
    }
}
