//! The trials of one scenario, combined into one result.

use crate::judge::outcome::OutcomeClass;
use crate::judge::result::Trials;
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_engine::plan::Token;
use unwindlab_engine::plan::TrialPlan;
use unwindlab_engine::runner::explore::{Preemption, choose};
use unwindlab_scenario::KernelSymbols;

/// The trials so far.
#[derive(Debug)]
pub(super) struct Tally {
    /// How many trials are planned.
    planned: u32,
    token: Option<Token>,
    /// The number of the only trial that is made, of several.
    unit: Option<u32>,
    trials: Trials,
    duration: std::time::Duration,
    /// The first expected failure, or the last pass.
    good: Option<ScenarioResult>,
    /// The number of the trial that gave the result, from 1.
    of: u32,
}

/// Which trial gave a result, for a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrialIdentity {
    /// The last of this many trials on one boot.
    pub(super) trials: Option<u32>,
    /// The trial of an exploration with this token.
    pub(super) token: Option<Token>,
}

impl Tally {
    /// Starts without trials. `trials` and `token` are what the request asks for.
    pub(super) fn new(plan: &TrialPlan, trials: Option<u32>, token: Option<Token>) -> Self {
        let planned = match token {
            Some(_) => 1,
            None => Self::planned(plan, trials),
        };
        Self {
            planned,
            token,
            unit: None,
            trials: Trials::default(),
            duration: std::time::Duration::ZERO,
            good: None,
            of: 0,
        }
    }

    /// Starts with one trial of several, by its number: the others are made elsewhere.
    pub(super) fn unit(plan: &TrialPlan, number: u32) -> Self {
        let seed = plan.explore.as_ref().map(|explore| explore.seed);
        let token = seed.map(|seed| Token {
            seed,
            trial: number,
        });
        Self {
            unit: Some(number),
            ..Self::new(plan, Some(1), token)
        }
    }

    /// How many trials a scenario has, where `trials` is what the request asks for.
    pub(super) fn planned(plan: &TrialPlan, trials: Option<u32>) -> u32 {
        let of_scenario = plan.explore.as_ref().map_or(1, |explore| explore.trials);
        trials.unwrap_or(of_scenario)
    }

    /// The token of the next trial.
    fn next(&self, plan: &TrialPlan) -> Option<Token> {
        let explore = plan.explore.as_ref()?;
        Some(self.token.unwrap_or(Token {
            seed: explore.seed,
            trial: self.trials.made + 1,
        }))
    }

    /// The preemptions of the next trial.
    pub(super) fn preemptions(&self, plan: &TrialPlan) -> Vec<Preemption> {
        match (&plan.explore, self.next(plan)) {
            (Some(explore), Some(token)) => choose(explore, plan.vcpus, token),
            _ => Vec::new(),
        }
    }

    /// Adds a trial's result; returns the result of all trials when no more are needed.
    pub(super) fn take(
        &mut self,
        plan: &TrialPlan,
        mut result: ScenarioResult,
        preemptions: &[Preemption],
        symbols: &dyn KernelSymbols,
    ) -> Option<ScenarioResult> {
        let token = self.next(plan);
        let made = made(plan, &result, preemptions.len());
        self.trials.made += 1;
        self.trials.preemptions += made.iter().filter(|made| **made).count() as u64;
        self.duration += result.duration;
        let number = self.trials.made;
        if result.outcome.class() != OutcomeClass::Good {
            if let Some(token) = token {
                let lines = preemptions.iter().zip(&made);
                let lines = lines.map(|(it, made)| describe(it, *made, symbols));
                result.reasons.extend(lines);
                let name = &result.name;
                let again = format!("once more: `unwindlab run {name} --token {token}`");
                result.reasons.push(again);
            } else if let Some(number) = self.unit {
                result.reasons.push(format!("in trial {number}"));
            } else if self.planned > 1 {
                result
                    .reasons
                    .push(format!("in trial {number} of {}", self.planned));
            }
            self.of = number;
            return Some(self.whole(result));
        }
        let expected = result.outcome == Outcome::ExpectedFailure;
        self.trials.expected_failures += u32::from(expected);
        let keep = match &self.good {
            Some(before) => before.outcome == Outcome::Pass,
            None => true,
        };
        if keep {
            self.of = number;
            self.good = Some(result);
        }
        (self.trials.made >= self.planned).then(|| self.so_far(plan))
    }

    /// Which trial gave the result. With `in_time`, the trials before it on the same boot matter
    /// too.
    pub(super) fn identity(&self, plan: &TrialPlan, in_time: bool) -> TrialIdentity {
        match (&plan.explore, self.token) {
            (Some(_), Some(token)) => TrialIdentity {
                trials: None,
                token: Some(token),
            },
            (Some(explore), None) if !in_time => TrialIdentity {
                trials: None,
                token: Some(Token {
                    seed: explore.seed,
                    trial: self.of,
                }),
            },
            _ => TrialIdentity {
                trials: (self.planned > 1).then_some(self.of),
                token: None,
            },
        }
    }

    /// The result of the trials that were made, all of them good.
    pub(super) fn so_far(&mut self, plan: &TrialPlan) -> ScenarioResult {
        let none = || {
            let reason = "interrupted".to_owned();
            ScenarioResult::not_run(&plan.scenario, Outcome::InfraError, reason)
        };
        let mut result = self.good.take().unwrap_or_else(none);
        if plan.explore.is_some() && self.planned > 1 && self.trials.preemptions == 0 {
            result.outcome = Outcome::Fail;
            let reason = "point not reached: no preemption was made in any trial";
            result.reasons.push(reason.to_owned());
        }
        self.whole(result)
    }

    fn whole(&self, mut result: ScenarioResult) -> ScenarioResult {
        result.duration = self.duration;
        let has_others = self.planned > 1 || self.unit.is_some();
        result.trials = has_others.then_some(self.trials);
        result
    }
}

/// Which of the preemptions were made. Each has two injections, behind the plan's own.
fn made(plan: &TrialPlan, result: &ScenarioResult, count: usize) -> Vec<bool> {
    let actions = result.trace.as_ref().map(|trace| trace.actions.as_slice());
    let actions = actions.unwrap_or_default();
    let first = plan.injections.len();
    let is = |spec: usize| actions.iter().any(|it| it.spec as usize == spec);
    (0..count).map(|number| is(first + 2 * number)).collect()
}

fn describe(it: &Preemption, made: bool, symbols: &dyn KernelSymbols) -> String {
    let name = |address: u64| match symbols.resolve(address) {
        Some((symbol, offset)) => format!("{symbol}+{offset:#x}"),
        None => format!("{address:#x}"),
    };
    format!(
        "preemption: vCPU {} at {} (arrival {}) until vCPU {} came to {} ({} times) or for {} ms{}",
        it.vcpu,
        name(it.at),
        it.hit,
        it.other,
        name(it.until),
        it.times,
        it.limit_ms,
        if made { "" } else { ": not reached" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::FakeKernel;
    use unwindlab_engine::plan::ExplorePlan;
    use unwindlab_scenario::check::check;
    use unwindlab_scenario::parse::parse;
    use unwindlab_scenario::resolve;

    /// Nothing but the feature has a name.
    const KERNEL: FakeKernel = FakeKernel {
        has_feature: true,
        generated: None,
    };

    fn plan() -> TrialPlan {
        let text = "name: s\ndescription: d\nworkload: { kind: spin, frames: 3 }\n";
        let scenario = parse("s.yaml", text).expect("it is YAML");
        let scenario = check("s.yaml", "s", scenario, &[]).expect("it is right");
        resolve("s.yaml", &scenario, &KERNEL, "hash").expect("it is a plan")
    }

    fn result(outcome: Outcome) -> ScenarioResult {
        let mut result = ScenarioResult::not_run("s", outcome, "because".to_owned());
        result.duration = std::time::Duration::from_secs(1);
        result
    }

    fn exploring() -> TrialPlan {
        TrialPlan {
            vcpus: 2,
            explore: Some(ExplorePlan {
                seed: 5,
                trials: 3,
                preemptions: 1,
                places: vec![0x10, 0x20],
            }),
            ..plan()
        }
    }

    #[test]
    fn one_trial_is_its_result() {
        let mut tally = Tally::new(&plan(), None, None);
        let all = tally.take(&plan(), result(Outcome::Pass), &[], &KERNEL);
        let all = all.expect("there is one");
        assert_eq!((all.outcome, all.trials), (Outcome::Pass, None));
    }

    #[test]
    fn the_first_that_does_not_pass_ends_them() {
        let mut tally = Tally::new(&plan(), Some(5), None);
        assert!(
            tally
                .take(&plan(), result(Outcome::Pass), &[], &KERNEL)
                .is_none()
        );
        let expected = result(Outcome::ExpectedFailure);
        assert!(tally.take(&plan(), expected, &[], &KERNEL).is_none());
        let all = tally.take(&plan(), result(Outcome::Fail), &[], &KERNEL);
        let all = all.expect("it is over");
        assert_eq!(all.outcome, Outcome::Fail);
        assert_eq!(all.reasons, ["because", "in trial 3 of 5"]);
        assert_eq!(all.duration.as_secs(), 3);
        let trials = all.trials.expect("more than one");
        assert_eq!((trials.made, trials.expected_failures), (3, 1));
    }

    #[test]
    fn an_expected_failure_is_what_is_seen_of_good_ones() {
        let mut tally = Tally::new(&plan(), Some(3), None);
        assert!(
            tally
                .take(&plan(), result(Outcome::Pass), &[], &KERNEL)
                .is_none()
        );
        let expected = result(Outcome::ExpectedFailure);
        assert!(tally.take(&plan(), expected, &[], &KERNEL).is_none());
        let all = tally.take(&plan(), result(Outcome::Pass), &[], &KERNEL);
        assert_eq!(all.expect("all are made").outcome, Outcome::ExpectedFailure);
    }

    #[test]
    fn a_failure_of_an_exploration_names_its_token() {
        let plan = exploring();
        let mut tally = Tally::new(&plan, None, None);
        let first = tally.preemptions(&plan);
        assert!(
            tally
                .take(&plan, result(Outcome::Pass), &first, &KERNEL)
                .is_none()
        );
        let second = tally.preemptions(&plan);
        let all = tally.take(&plan, result(Outcome::Fail), &second, &KERNEL);
        let all = all.expect("it is over");
        let last = all.reasons.last().map(String::as_str);
        assert_eq!(last, Some("once more: `unwindlab run s --token 5:2`"));
        let token = Token { seed: 5, trial: 2 };
        let again = Tally::new(&plan, None, Some(token));
        assert_eq!(again.preemptions(&plan), second);
    }

    #[test]
    fn an_exploration_without_a_preemption_is_no_pass() {
        let plan = exploring();
        let mut tally = Tally::new(&plan, None, None);
        let mut last = None;
        for _ in 0..3 {
            let preemptions = tally.preemptions(&plan);
            last = tally.take(&plan, result(Outcome::Pass), &preemptions, &KERNEL);
        }
        let last = last.expect("all are made");
        assert_eq!(last.outcome, Outcome::Fail);
    }
}
