//! The trials of one scenario, put together.

use crate::judge::outcome::OutcomeClass;
use crate::judge::result::Trials;
use crate::judge::{Outcome, ScenarioResult};
use crate::plan::Token;
use crate::plan::TrialPlan;
use crate::runner::explore::{Preemption, choose};
use crate::scenario::KernelSymbols;

/// How far they are.
#[derive(Debug)]
pub(super) struct Tally {
    /// How many there are to be.
    planned: u32,
    token: Option<Token>,
    trials: Trials,
    duration: std::time::Duration,
    /// The first expected failure, or the last pass.
    good: Option<ScenarioResult>,
    /// The number of the trial that the result is of, from 1.
    of: u32,
}

/// Which trial a result is of, to make it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Made {
    /// The last of so many on one boot.
    pub(super) trials: Option<u32>,
    /// This one of an exploration, by itself.
    pub(super) token: Option<Token>,
}

impl Tally {
    /// None so far. `trials` and `token` are what the user asks for.
    pub(super) fn new(plan: &TrialPlan, trials: Option<u32>, token: Option<Token>) -> Self {
        let of_scenario = plan.explore.as_ref().map_or(1, |explore| explore.trials);
        let planned = match token {
            Some(_) => 1,
            None => trials.unwrap_or(of_scenario),
        };
        Self {
            planned,
            token,
            trials: Trials::default(),
            duration: std::time::Duration::ZERO,
            good: None,
            of: 0,
        }
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

    /// Takes a trial's result; what came of all of them, where no more are to be made.
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

    /// Which trial the result is of. `in_time`: what came before it on the same boot counts.
    pub(super) fn made(&self, plan: &TrialPlan, in_time: bool) -> Made {
        match (&plan.explore, self.token) {
            (Some(_), Some(token)) => Made {
                trials: None,
                token: Some(token),
            },
            (Some(explore), None) if !in_time => Made {
                trials: None,
                token: Some(Token {
                    seed: explore.seed,
                    trial: self.of,
                }),
            },
            _ => Made {
                trials: (self.planned > 1).then_some(self.of),
                token: None,
            },
        }
    }

    /// What came of those that were made, all of them good.
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
        result.trials = (self.planned > 1).then_some(self.trials);
        result
    }
}

/// Which of the preemptions were made: they stand behind the plan's own injections, two of each.
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
mod tests;
