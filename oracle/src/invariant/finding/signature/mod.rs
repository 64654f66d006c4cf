//! The event sequence that identifies a finding, and whether a violation shows it.

mod events;
mod flaw;
mod log;

use std::collections::BTreeMap;

use serde::Deserialize;
use unwindlab_abi::plan::EventSpec;

use self::events::EventPattern;
use self::log::LogPattern;
use super::Resolver;
use super::places::Places;
use crate::invariant::evidence::{Evidence, Facts, Task, announced_spec, has_side_band_bit};
use crate::invariant::{Violation, world};
use crate::trace::lab::LabClient;
use crate::trace::{Event, Trace};

/// What a violation must show to be a finding.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signature {
    /// Functions: the violation's instruction is in one of them. `None`: any instruction.
    instruction: Option<Vec<String>>,
    /// The violation's events, all of them, in order.
    #[serde(default)]
    events: Vec<EventPattern>,
    /// The violation's records of the lab client's log, all of them, in order.
    #[serde(default)]
    log: Vec<LogPattern>,
    /// Instead of either: the beginnings of the lines of W0's report, from the first on.
    #[serde(default)]
    report: Option<Vec<String>>,
    /// Instead of all of these: the open event that lacks its copy of a record.
    receiver: Option<Receiver>,
}

/// An open event.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receiver {
    /// Whether it has one of the bits that make a side-band event.
    #[serde(rename = "side-band")]
    side_band: Option<bool>,
    /// Whether tasks inherit it.
    inherited: Option<bool>,
    /// Whether the copies of others, at least one, come behind the exit record of their task.
    exiting: Option<bool>,
}

impl Receiver {
    fn fits(&self, facts: &Facts<'_>, violation: &Violation, spec: &EventSpec) -> bool {
        let copies = violation.events.iter();
        let mut copies = copies.filter_map(|at| facts.trace.events.get(*at));
        let exiting =
            !violation.events.is_empty() && copies.all(|copy| facts.behind_exit(copy).is_some());
        self.side_band
            .is_none_or(|it| it == has_side_band_bit(spec))
            && self.inherited.is_none_or(|it| it == spec.inherit)
            && self.exiting.is_none_or(|it| it == exiting)
    }
}

/// A cookie in a pattern: a name for one, or the number 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged)]
enum CookieName {
    Number(u64),
    Name(String),
}

/// Names and what they stand for; two names never stand for one thing.
#[derive(Debug)]
struct Bindings<K, V>(BTreeMap<K, V>);

impl<K, V> Default for Bindings<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: PartialEq> Bindings<K, V> {
    /// Whether `name` is, or now becomes, the name of `value`.
    fn bind(&mut self, name: K, value: V) -> bool {
        if let Some(bound) = self.0.get(&name) {
            return *bound == value;
        }
        let free = self.0.values().all(|other| *other != value);
        free && self.0.insert(name, value).is_none()
    }
}

/// What the names of a signature stand for.
#[derive(Debug, Default)]
struct Names {
    tasks: Bindings<String, Task>,
    /// Tasks of the lab client's log, by its numbers.
    numbers: Bindings<String, u32>,
    clients: Bindings<String, LabClient>,
    cookies: Bindings<CookieName, u64>,
}

impl Names {
    /// Whether a record has the cookie that a pattern says, if it says one. A name is never 0's.
    fn cookie(&mut self, pattern: Option<&CookieName>, found: Option<u64>) -> bool {
        match pattern {
            None => true,
            Some(CookieName::Number(number)) => found == Some(*number),
            Some(name) => {
                found.is_some_and(|cookie| cookie != 0 && self.cookies.bind(name.clone(), cookie))
            }
        }
    }
}

impl Signature {
    /// The patterns for so many events, if it has as many, the one that may come again counted once or
    /// twice.
    fn patterns(&self, events: usize) -> Option<Vec<&EventPattern>> {
        let again = |twice: bool| {
            let times = move |it: &EventPattern| if twice && it.again { 2 } else { 1 };
            let all = self.events.iter();
            all.flat_map(move |it| std::iter::repeat_n(it, times(it)))
        };
        let fits = [false, true].into_iter();
        let mut fits = fits.filter(|&twice| again(twice).count() == events);
        fits.next().map(|twice| again(twice).collect())
    }

    /// Whether a violation shows it.
    pub fn matches<K: Resolver + ?Sized>(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        kernel: &Places<'_, K>,
    ) -> bool {
        let trace = evidence.trace();
        if let Some(receiver) = &self.receiver {
            let lacking = violation.receiver.and_then(|at| trace.session.get(at));
            let spec = lacking.and_then(|open| announced_spec(trace, open));
            return spec.is_some_and(|spec| receiver.fits(evidence.facts(), violation, spec));
        }
        let Some(patterns) = self.patterns(violation.events.len()) else {
            return false;
        };
        if violation.log.len() != self.log.len() {
            return false;
        }
        if let Some(lines) = &self.report {
            let place = self.instruction.as_ref();
            return world::w0_console::is_of(violation, lines, trace)
                && place.is_none_or(|names| kernel.reported_within(&violation.message, names));
        }
        if let Some(functions) = &self.instruction
            && !kernel.are_open()
            && !violation
                .instruction
                .is_some_and(|ip| kernel.within(ip, functions))
        {
            return false;
        }
        let mut names = Names::default();
        self.is_logged(violation, trace, kernel, &mut names)
            && are_recorded(&patterns, violation, evidence, kernel, &mut names)
    }

    /// Whether the violation's records of the lab client's log are what the patterns say.
    fn is_logged<K: Resolver + ?Sized>(
        &self,
        violation: &Violation,
        trace: &Trace,
        kernel: &Places<'_, K>,
        names: &mut Names,
    ) -> bool {
        let mut before = None;
        self.log.iter().zip(&violation.log).all(|(pattern, &slot)| {
            let Some(event) = trace.lab.as_ref().and_then(|lab| lab.at(slot)) else {
                return false;
            };
            let task =
                { pattern.task.clone() }.is_none_or(|name| names.numbers.bind(name, event.task));
            let client = { pattern.client.clone() }.is_none_or(|name| {
                event
                    .client
                    .is_some_and(|client| names.clients.bind(name, client))
            });
            let cookie = names.cookie(pattern.cookie.as_ref(), event.cookie());
            let last: Option<u64> = before.replace(slot);
            task && client && cookie && pattern.fits(trace, event, last, kernel)
        })
    }
}

/// Whether the violation's events are what the patterns say.
fn are_recorded<K: Resolver + ?Sized>(
    patterns: &[&EventPattern],
    violation: &Violation,
    evidence: &Evidence<'_>,
    kernel: &Places<'_, K>,
    names: &mut Names,
) -> bool {
    let (facts, events) = (evidence.facts(), &evidence.trace().events);
    let all = { violation.events.iter() }.filter_map(|&index| events.get(index));
    let all: Vec<&Event> = all.collect();
    let mut pairs = patterns.iter().zip(&violation.events);
    pairs.all(|(pattern, &index)| {
        let Some(event) = events.get(index) else {
            return false;
        };
        let task = { pattern.task.clone() }.is_none_or(|name| {
            let task = facts.tasks.of(event);
            task.is_some_and(|task| names.tasks.bind(name, task))
        });
        let cookie = names.cookie(pattern.cookie.as_ref(), event.cookie());
        task && cookie && pattern.fits(facts, event, &all, kernel)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_thing_and_a_thing_has_one_name() {
        let mut names = Bindings::default();
        assert!(names.bind("a", 1));
        assert!(names.bind("a", 1));
        assert!(!names.bind("a", 2));
        assert!(!names.bind("b", 1));
        assert!(names.bind("b", 2));
    }
}
