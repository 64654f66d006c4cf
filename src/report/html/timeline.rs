//! The records around a violation, as lanes of vCPUs and tasks, with an arc from each request to its answer.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::records::{Record, Role};
use crate::report::names::Names;

/// Records of a violation that are shown, and those next to each in the trace.
const MARKED: usize = 8;
const NEAR: usize = 3;
/// Other records with the cookie of one of those that are shown.
const SAME_COOKIE: usize = 4;

/// A part of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Timeline {
    /// vCPUs, in order.
    pub cpus: Vec<u32>,
    /// Tasks, by their first record.
    pub tasks: Vec<String>,
    pub records: Vec<Shown>,
    pub arcs: Vec<Arc>,
}

/// A record that is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    /// How violations name it: `#17`, or `log 17`.
    pub id: String,
    /// All of it, in a line.
    pub line: String,
    /// Seconds, nine digits behind the point.
    pub time: Option<String>,
    /// Index of its lane among the vCPUs, and among the tasks.
    pub cpu: usize,
    pub task: usize,
    pub role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// The instruction that its NMI interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit: Option<String>,
    /// The violation names it.
    pub bad: bool,
    /// Records between the one before and this one that are not shown.
    pub gap: usize,
}

/// From a request to its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Arc {
    pub cookie: String,
    /// Number of the cookie among those that are shown.
    pub colour: usize,
    /// Indexes of records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<usize>,
    /// The violation is about this cookie.
    pub broken: bool,
    /// What an end that is missing means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

/// Why an arc has one end only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Missing {
    /// The trace has none with this cookie.
    Request,
    Answer,
    /// It is in the trace, and not shown here.
    NotShown,
}

impl Timeline {
    /// Of the records for which `is_bad` holds, and what is around them; of the last ones where it holds for none.
    /// `message` says what is wrong with them.
    pub fn of(
        all: &[Record<'_>],
        is_bad: impl Fn(&Record<'_>) -> bool,
        message: &str,
        interrupted: &dyn Fn(&Record<'_>) -> Option<u64>,
        names: Names<'_>,
    ) -> Self {
        let marked: Vec<usize> = (0..all.len())
            .filter(|&at| all.get(at).is_some_and(&is_bad))
            .collect();
        let chosen = chosen(all, &marked);
        let mut timeline = Self::default();
        let mut of_task = BTreeMap::new();
        let records = chosen.iter().filter_map(|&at| all.get(at));
        let cpus: BTreeSet<u32> = records.clone().map(Record::cpu).collect();
        let mut last = None;
        for (&at, record) in chosen.iter().zip(records) {
            let task = record.task();
            let lane = *of_task.entry(task.clone()).or_insert_with(|| {
                timeline.tasks.push(task);
                timeline.tasks.len() - 1
            });
            timeline.records.push(Shown {
                id: record.id(),
                line: record.line(names),
                time: record.time().map(seconds),
                cpu: cpus.iter().take_while(|&&cpu| cpu < record.cpu()).count(),
                task: lane,
                role: record.role(),
                cookie: record.cookie().map(|it| format!("{it:#x}")),
                hit: interrupted(record).map(|address| names.name(address)),
                bad: marked.binary_search(&at).is_ok(),
                gap: last.map_or(at, |last: usize| at.saturating_sub(last + 1)),
            });
            last = Some(at);
        }
        timeline.cpus = cpus.into_iter().collect();
        timeline.arcs = arcs(all, &chosen, &broken(all, &marked, message));
        timeline
    }
}

/// `1.253415735`.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Which records are shown, in order.
fn chosen(all: &[Record<'_>], marked: &[usize]) -> Vec<usize> {
    let mut chosen = BTreeSet::new();
    for &mark in marked.iter().take(MARKED) {
        chosen.extend(mark.saturating_sub(NEAR)..=mark.saturating_add(NEAR));
        let Some(cookie) = all.get(mark).and_then(Record::cookie) else {
            continue;
        };
        let mut others: Vec<usize> = (0..all.len())
            .filter(|&at| all.get(at).and_then(Record::cookie) == Some(cookie))
            .collect();
        others.sort_by_key(|&at| at.abs_diff(mark));
        chosen.extend(others.into_iter().take(SAME_COOKIE));
    }
    if marked.is_empty() {
        chosen.extend(all.len().saturating_sub(4 * NEAR)..all.len());
    }
    chosen.retain(|&at| at < all.len());
    chosen.into_iter().collect()
}

/// The requests and answers with one cookie.
#[derive(Default)]
struct Exchange {
    /// In the whole trace.
    requests: usize,
    answers: usize,
    /// Those that are shown, by their index there, in order.
    shown: Vec<(usize, Role)>,
}

/// The cookies of these records that a message names; all of them where it names none.
fn broken(all: &[Record<'_>], marked: &[usize], message: &str) -> BTreeSet<u64> {
    let is_number = |c: char| c.is_ascii_alphanumeric();
    let words = message.split(|c| !is_number(c));
    let numbers = words.filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let named: BTreeSet<u64> = numbers.collect();
    let cookie_at = |at: &usize| all.get(*at).and_then(Record::cookie);
    let cookies: BTreeSet<u64> = marked.iter().filter_map(cookie_at).collect();
    match cookies.is_disjoint(&named) {
        true => cookies,
        false => &cookies & &named,
    }
}

fn arcs(all: &[Record<'_>], chosen: &[usize], broken: &BTreeSet<u64>) -> Vec<Arc> {
    let mut order = Vec::new();
    let mut exchanges: BTreeMap<u64, Exchange> = BTreeMap::new();
    for (index, &at) in chosen.iter().enumerate() {
        if let Some(record) = all.get(at)
            && let Some(cookie) = record.cookie()
        {
            let exchange = exchanges.entry(cookie).or_insert_with(|| {
                order.push(cookie);
                Exchange::default()
            });
            exchange.shown.push((index, record.role()));
        }
    }
    for record in all {
        let exchange = record.cookie().and_then(|it| exchanges.get_mut(&it));
        if let Some(exchange) = exchange {
            exchange.requests += usize::from(record.role() == Role::Request);
            exchange.answers += usize::from(record.role() == Role::Answer);
        }
    }
    let mut arcs = Vec::new();
    for (colour, cookie) in order.into_iter().enumerate() {
        let Some(exchange) = exchanges.get(&cookie) else {
            continue;
        };
        for (from, to, missing) in exchange.ends() {
            arcs.push(Arc {
                cookie: format!("{cookie:#x}"),
                colour,
                from,
                to,
                broken: broken.contains(&cookie),
                missing,
            });
        }
    }
    arcs
}

impl Exchange {
    /// From each request to the answer behind it, else to the last one before it: then it came late.
    fn ends(&self) -> Vec<(Option<usize>, Option<usize>, Option<Missing>)> {
        let mut ends = Vec::new();
        let (mut open, mut last) = (Vec::new(), None);
        for &(index, role) in &self.shown {
            if role == Role::Request {
                open.push(index);
                continue;
            }
            if open.is_empty() {
                let missing = match self.requests {
                    0 => Missing::Request,
                    _ => Missing::NotShown,
                };
                ends.push((None, Some(index), Some(missing)));
            }
            ends.extend(open.drain(..).map(|from| (Some(from), Some(index), None)));
            last = Some(index);
        }
        let missing = match (last, self.answers) {
            (Some(_), _) => None,
            (None, 0) => Some(Missing::Answer),
            (None, _) => Some(Missing::NotShown),
        };
        ends.extend({ open }.into_iter().map(|from| (Some(from), last, missing)));
        ends
    }
}
