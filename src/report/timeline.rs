//! A few events as a timeline: a column for each CPU, and what happened at the right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use unwindlab_oracle::trace::{Event, EventKind};

use super::failure::what;
use super::names::Names;

/// Cookies are called A to Z in the columns; all further ones are `+`.
const LETTERS: usize = 26;
/// CPUs that have a column of their own.
const MAX_CPUS: usize = 8;

/// A line for each event: `>` if `marked` says so, index, time since the first of them, in each CPU's column what happened there, thread,
/// content. A request of cookie A is `A?` and its answer `A!`; anything else is `*`.
#[must_use]
pub fn timeline(events: &[&Event], marked: impl Fn(&Event) -> bool, names: Names<'_>) -> String {
    let cpus: BTreeSet<u32> = events.iter().map(|event| event.cpu).collect();
    let cpus: Vec<u32> = cpus.into_iter().take(MAX_CPUS).collect();
    let letters = letters(events);
    let first = events.iter().find_map(|event| event.time);
    let width = |texts: &mut dyn Iterator<Item = String>| texts.map(|it| it.len()).max();
    let number = width(&mut events.iter().map(|it| it.index.to_string())).unwrap_or(1);
    let times: Vec<String> = events.iter().map(|event| since(first, event)).collect();
    let time = width(&mut times.iter().cloned()).unwrap_or(0).max(2);
    let mut out = format!("     {:number$}  {:>time$} ", "", "us");
    for cpu in &cpus {
        let _ = write!(out, " {:<5}", format!("cpu{cpu}"));
    }
    out.push_str(" thread\n");
    for (event, at) in events.iter().zip(&times) {
        let mark = if marked(event) { '>' } else { ' ' };
        let _ = write!(out, "  {mark} #{:<number$}  {at:>time$} ", event.index);
        for cpu in &cpus {
            let cell = match *cpu == event.cpu {
                true => symbol(event, &letters),
                false => ".".to_owned(),
            };
            let _ = write!(out, " {cell:<5}");
        }
        let id = |n: Option<u32>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let thread = format!("{}/{}", id(event.pid), id(event.tid));
        let _ = writeln!(out, " {thread} {}", what(&event.kind, names));
    }
    out
}

/// The letter of each cookie, in the order in which they come.
fn letters(events: &[&Event]) -> BTreeMap<u64, char> {
    let mut letters = BTreeMap::new();
    for cookie in events.iter().filter_map(|event| cookie(event)) {
        let letter = match letters.len() {
            n if n < LETTERS => ('A'..='Z').nth(n).unwrap_or('+'),
            _ => '+',
        };
        letters.entry(cookie).or_insert(letter);
    }
    letters
}

fn cookie(event: &Event) -> Option<u64> {
    let asked = event.deferred_sample().map(|it| it.1);
    asked.or_else(|| Some(event.deferred_chain()?.cookie))
}

fn symbol(event: &Event, letters: &BTreeMap<u64, char>) -> String {
    let letter = cookie(event).and_then(|it| letters.get(&it));
    match (letter, &event.kind) {
        (Some(letter), EventKind::Sample(_)) => format!("{letter}?"),
        (Some(letter), _) => format!("{letter}!"),
        (None, _) => "*".to_owned(),
    }
}

/// Microseconds since `first`, with a sign; nothing for an event without a time.
fn since(first: Option<u64>, event: &Event) -> String {
    let Some((first, time)) = first.zip(event.time) else {
        return String::new();
    };
    let sign = if time < first { '-' } else { '+' };
    let ns = time.abs_diff(first);
    format!("{sign}{}.{:03}", ns / 1000, ns % 1000)
}
