//! The random preemptions of a trial. A seed and the trial's number alone determine them.
//!
//! After "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs" (Burckhardt and
//! others, ASPLOS 2010): most bugs of concurrency need a few preemptions only, at the right places.
//! There a scheduler runs one thread at a time; here all vCPUs run, and a preempted one stands
//! still.

use crate::plan::{
    ActionPlan, ArrivalPlan, CodePlace, ExplorePlan, InjectionPlan, TaskFilter, Token, TrialPlan,
    TriggerPlan,
};

/// One preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preemption {
    /// Who stands still.
    pub vcpu: u8,
    /// At which instruction.
    pub at: u64,
    /// Which time that vCPU comes there, NMIs' handlers left out.
    pub hit: u64,
    /// Until this vCPU
    pub other: u8,
    /// has come here
    pub until: u64,
    /// so often,
    pub times: u64,
    /// or for so many milliseconds.
    pub limit_ms: u64,
}

/// The preemptions of a trial.
#[must_use]
pub fn choose(explore: &ExplorePlan, vcpus: u8, token: Token) -> Vec<Preemption> {
    // Trials next to each other are not to look alike; the odd factor keeps them apart.
    let trial = u64::from(token.trial).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut rng = fastrand::Rng::with_seed(token.seed ^ trial);
    let mut chosen = Vec::new();
    for _ in 0..explore.preemptions {
        let vcpu = rng.u8(0..vcpus.max(1));
        let other = (vcpu + rng.u8(1..vcpus.max(2))) % vcpus.max(1);
        let (Some(&at), Some(&until)) = (
            rng.choice(explore.places.iter()),
            rng.choice(explore.places.iter()),
        ) else {
            break;
        };
        // Small numbers are as likely as large ones: how often a place is passed is not known.
        let mut often = |doublings| {
            let most = 1 << rng.u32(0..=doublings);
            rng.u64(1..=most)
        };
        let (hit, times) = (often(5), often(2));
        chosen.push(Preemption {
            vcpu,
            at,
            hit,
            other,
            until,
            times,
            limit_ms: rng.u64(10..=60),
        });
    }
    chosen
}

/// The plan with these preemptions behind its own injections: two of each.
#[must_use]
pub fn with(plan: &TrialPlan, preemptions: &[Preemption]) -> TrialPlan {
    let mut plan = plan.clone();
    for (number, it) in (1..).zip(preemptions) {
        let stop = u32::try_from(plan.injections.len()).unwrap_or(u32::MAX);
        plan.injections.push(InjectionPlan {
            name: format!("preemption {number}"),
            trigger: arrival(it.at, it.hit, it.vcpu),
            after: Vec::new(),
            action: ActionPlan::Preempt {
                limit_ms: it.limit_ms,
            },
            target: None,
        });
        plan.injections.push(InjectionPlan {
            name: format!("end of preemption {number}"),
            trigger: arrival(it.until, it.times, it.other),
            after: vec![stop],
            action: ActionPlan::EndPreemption,
            target: Some(it.vcpu),
        });
    }
    plan
}

fn arrival(address: u64, hit: u64, vcpu: u8) -> TriggerPlan {
    TriggerPlan::Arrival(ArrivalPlan {
        hit,
        by: TaskFilter::Any,
        vcpu: Some(vcpu),
        optional: true,
        ..ArrivalPlan::first(CodePlace::Kernel { address })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> ExplorePlan {
        ExplorePlan {
            seed: 1,
            trials: 100,
            preemptions: 3,
            places: (0..500).map(|n| 0x1000 + n).collect(),
        }
    }

    #[test]
    fn a_token_makes_the_same_choices_and_another_one_others() {
        let token = |seed, trial| Token { seed, trial };
        let one = choose(&plan(), 2, token(1, 1));
        assert_eq!(one.len(), 3);
        assert_eq!(one, choose(&plan(), 2, token(1, 1)));
        assert_ne!(one, choose(&plan(), 2, token(1, 2)));
        assert_ne!(one, choose(&plan(), 2, token(2, 1)));
        for trial in 1..200 {
            for it in choose(&plan(), 3, token(7, trial)) {
                assert!(it.vcpu < 3 && it.other < 3 && it.vcpu != it.other, "{it:?}");
                assert!(
                    (1..=32).contains(&it.hit) && (1..=4).contains(&it.times),
                    "{it:?}"
                );
            }
        }
    }

    #[test]
    fn tokens_are_read_as_they_are_written() {
        let token = Token { seed: 7, trial: 37 };
        assert_eq!(token.to_string().parse(), Ok(token));
        for wrong in ["", "7", "7:", "7:0", "x:1", "1:2:3"] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }
}
