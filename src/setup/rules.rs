//! Combinations of levels that are no set-ups, because the kernel refuses them or because nothing
//! could be judged.

use super::factors::{Factor, number};

/// A forbidden combination: every one of these factors has one of its levels here.
#[derive(Debug)]
pub struct Rule {
    /// Factors and levels.
    pub forbids: &'static [(Factor, &'static [&'static str])],
    /// Why. A refusal is tried as such by [`super::refusals`].
    pub why: &'static str,
}

const SHARED: (Factor, &[&str]) = (Factor::Ring, &["shared", "shared-at-open"]);
const OVERWRITTEN: (Factor, &[&str]) = (Factor::Ring, &["overwritten", "backward-overwritten"]);
const INHERITS: &[&str] = &["inherit", "inherit-thread"];
const READS: (Factor, &[&str]) = (Factor::Read, &["value", "all", "group"]);

/// The rules. The source is kernel/events/core.c of Linux 7.3.
pub const RULES: &[Rule] = &[
    Rule {
        forbids: &[
            (Factor::Receiver, &["itself"]),
            (
                Factor::ReceiverOf,
                &[
                    "thread",
                    "inherit",
                    "inherit-thread",
                    "cgroup",
                    "empty-cgroup",
                ],
            ),
        ],
        why: "there is no second event",
    },
    Rule {
        forbids: &[
            (Factor::Receiver, &["itself"]),
            (
                Factor::Operation,
                &["disable-receiver", "pause-receiver", "close-receiver"],
            ),
        ],
        why: "there is no second event",
    },
    Rule {
        forbids: &[SHARED, (Factor::Identifier, &["no"])],
        why: "nobody can tell which event of a ring wrote a record",
    },
    Rule {
        forbids: &[SHARED, (Factor::SampleIdAll, &["no"])],
        why: "nobody can tell which event of a ring wrote a record",
    },
    Rule {
        forbids: &[SHARED, (Factor::Clock, &["monotonic", "monotonic-raw"])],
        why: "perf_event_set_output refuses events of different clocks",
    },
    Rule {
        forbids: &[(Factor::AskerOf, INHERITS), READS, (Factor::Tid, &["no"])],
        why: "perf_event_alloc refuses inherit with READ and without TID",
    },
    Rule {
        forbids: &[
            (Factor::ReceiverOf, INHERITS),
            READS,
            (Factor::Tid, &["no"]),
        ],
        why: "perf_event_alloc refuses inherit with READ and without TID",
    },
    Rule {
        forbids: &[
            (Factor::AskerOf, INHERITS),
            (Factor::Operation, &["refresh-asker"]),
        ],
        why: "_perf_event_refresh refuses inherited events",
    },
    Rule {
        forbids: &[
            (Factor::Operation, &["close-asker"]),
            (Factor::Source, &["sys-enter", "sys-exit"]),
        ],
        why: "its ring holds it, and the agent cannot turn it off before the receivers: nobody gets \
              what answers the agent's own system calls",
    },
    Rule {
        forbids: &[SHARED, (Factor::Operation, &["pause-receiver"])],
        why: "it would pause the reference, by which the set-up is judged",
    },
    Rule {
        forbids: &[
            (Factor::RemoveOnExec, &["yes"]),
            (Factor::EnableOnExec, &["yes"]),
        ],
        why: "perf_copy_attr refuses both",
    },
    Rule {
        forbids: &[
            (Factor::MaxStack, &["127"]),
            (Factor::Sysctl, &["max-stack-16"]),
        ],
        why: "get_callchain_buffers refuses more than the sysctl",
    },
    Rule {
        forbids: &[(Factor::StackUser, &["0"])],
        // perf_output_sample_ustack writes dyn_size, which perf_prepare_sample has not counted and
        // which perf_event_open(2) says is omitted: a fault of perf without deferral too.
        why: "what follows in its samples is shifted by a field: it is tried alone",
    },
    Rule {
        forbids: &[(Factor::StackUser, &["8192"]), (Factor::Pages, &["1"])],
        why: "no sample fits into the ring",
    },
    Rule {
        forbids: &[
            (Factor::Pages, &["1"]),
            (Factor::Source, &["sys-enter", "sys-exit"]),
        ],
        why: "the samples of other system calls fill the ring before it is read",
    },
    Rule {
        forbids: &[(Factor::Pages, &["1"]), (Factor::Sessions, &["2", "3"])],
        why: "the requests of others fill the ring before it is read",
    },
    Rule {
        forbids: &[
            (Factor::Pages, &["1"]),
            (Factor::Workload, &["exec", "moved"]),
        ],
        why: "the requests of others fill the ring before it is read",
    },
    Rule {
        forbids: &[(Factor::Pages, &["1"]), (Factor::Frames, &["400"])],
        why: "one record 22 fills the ring",
    },
    Rule {
        forbids: &[
            (Factor::ExcludeCallchainUser, &["yes"]),
            (Factor::Tid, &["no"]),
            (Factor::Source, &["sys-enter", "sys-exit"]),
        ],
        why: "nobody can tell whose sample it is, without a task and without a cookie",
    },
    Rule {
        forbids: &[
            (Factor::Sysctl, &["max-contexts-2", "max-contexts-1"]),
            (Factor::Tid, &["no"]),
            (Factor::Source, &["sys-enter", "sys-exit"]),
        ],
        why: "nobody can tell whose sample it is, without a task and without a cookie",
    },
    Rule {
        forbids: &[OVERWRITTEN, (Factor::Pages, &["1"])],
        why: "records are overwritten before they are read",
    },
    Rule {
        forbids: &[OVERWRITTEN, (Factor::StackUser, &["8192"])],
        why: "records are overwritten before they are read",
    },
    Rule {
        forbids: &[
            (Factor::Workload, &["fork", "exec", "moved"]),
            (
                Factor::Operation,
                &[
                    "enable-asker",
                    "disable-asker",
                    "refresh-asker",
                    "reset-asker",
                    "close-asker",
                    "disable-receiver",
                    "pause-receiver",
                    "close-receiver",
                    "unmap-bystander",
                ],
            ),
        ],
        why: "the leaf of perf-calls does the operations",
    },
    Rule {
        forbids: &[
            (Factor::Workload, &["moved"]),
            (Factor::Tid, &["no"]),
            (Factor::ExcludeCallchainUser, &["yes"]),
        ],
        why: "nobody can tell whose sample it is: other tasks read too",
    },
    Rule {
        forbids: &[
            (Factor::Workload, &["moved"]),
            (Factor::Tid, &["no"]),
            (Factor::Sysctl, &["max-contexts-2", "max-contexts-1"]),
        ],
        why: "nobody can tell whose sample it is: other tasks read too",
    },
];

/// Set-ups with a level that a rule keeps out of combinations.
pub const ALONE: &[&[(Factor, &str)]] = &[
    &[(Factor::StackUser, "0")],
    &[(Factor::StackUser, "0"), (Factor::DataSrc, "yes")],
];

/// The rules as numbers of factors and levels.
#[must_use]
pub fn forbidden() -> Vec<Vec<(usize, Vec<u8>)>> {
    let numbers = |&(factor, levels): &(Factor, &[&str])| {
        let levels = levels.iter().filter_map(|level| number(factor, level));
        (factor as usize, levels.collect())
    };
    let rules = RULES.iter();
    rules
        .map(|rule| rule.forbids.iter().map(numbers).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::factors::FACTORS;
    use super::*;

    /// So that a combination which breaks no rule can always be completed by defaults.
    #[test]
    fn no_rule_forbids_a_default_and_every_level_exists() {
        for (rule, numbers) in RULES.iter().zip(forbidden()) {
            assert!(!numbers.is_empty(), "{}", rule.why);
            for ((factor, levels), (at, known)) in rule.forbids.iter().zip(&numbers) {
                assert_eq!(known.len(), levels.len(), "{factor:?}");
                assert!(!known.contains(&0), "{factor:?}");
                assert!(*at < FACTORS.len());
            }
        }
    }
}
