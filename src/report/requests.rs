//! The places of a path at which tracers sat, as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use unwindlab_abi::survey::context;

use super::sweep::what;
use crate::judge::requests::{Company, Fate, PlaceVerdict, RequestVerdicts, Seat};
use unwindlab_engine::text::printable;

/// Lines of a failure that are shown.
const MAX_MESSAGES: usize = 16;
/// Places that are named in one list.
const MAX_NAMES: usize = 12;

/// What was tried, to report.
#[derive(Debug, Clone, Copy)]
pub struct TriedPlaces<'a> {
    /// The places.
    pub verdicts: &'a RequestVerdicts,
    /// How many places the path has.
    pub found: usize,
    /// How long the trials took.
    pub elapsed: Duration,
}

/// The whole report, some lines.
#[must_use]
pub fn report(tried: &TriedPlaces<'_>) -> String {
    let mut out = failures(tried.verdicts);
    out += &contexts(tried.verdicts);
    out += &entries(tried.verdicts);
    out += &not_judged(tried.verdicts);
    out += &last_lines(tried);
    out
}

fn failures(verdicts: &RequestVerdicts) -> String {
    let mut out = String::new();
    for (symptom, failure) in &verdicts.failures {
        let word = match symptom.is_known() {
            true => "expected-failure",
            false => "FAIL",
        };
        let (what, count) = (what(symptom), failure.places.len());
        let _ = writeln!(out, "{word}  {what}  at {count} of the places");
        for message in failure.messages.iter().take(MAX_MESSAGES) {
            let _ = writeln!(out, "  {}", printable(message));
        }
        let places = failure.places.iter().map(String::as_str);
        let _ = writeln!(out, "  at {}", list(places));
    }
    out
}

/// `a, b and 3 more`.
fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names.get(..MAX_NAMES.min(names.len())).unwrap_or_default();
    let mut out = printable(&shown.join(", "));
    if names.len() > MAX_NAMES {
        let _ = write!(out, " and {} more", names.len() - MAX_NAMES);
    }
    out
}

fn is_judged(verdict: &PlaceVerdict) -> bool {
    matches!(verdict.fate, Fate::Passed | Fate::Known | Fate::Failed)
}

/// A table of the contexts in which places are passed. A place may be in several.
fn contexts(verdicts: &RequestVerdicts) -> String {
    let mut out = format!("\n{:<16}  places  tried  fail\n", "context");
    for (bit, name) in context::NAMES {
        let here = || {
            let places = verdicts.places.iter();
            places.filter(move |it| it.place.contexts & bit != 0)
        };
        let judged = here().filter(|it| is_judged(it)).count();
        let failed = here().filter(|it| it.fate == Fate::Failed).count();
        let all = here().count();
        let _ = writeln!(out, "{name:<16}  {all:>6}  {judged:>5}  {failed:>4}");
    }
    out
}

/// How the task had entered the kernel where tracers asked.
fn entries(verdicts: &RequestVerdicts) -> String {
    let mut entries: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for verdict in &verdicts.places {
        for (entry, requests) in &verdict.entered_by {
            let (places, all) = entries.entry(entry).or_default();
            *places += 1;
            *all += requests;
        }
    }
    let width = entries.keys().map(|it| it.len()).max().unwrap_or(0).max(7);
    let mut out = format!("\n{:<width$}  places  requests\n", "entry");
    for (entry, (places, requests)) in entries {
        let _ = writeln!(
            out,
            "{:<width$}  {places:>6}  {requests:>8}",
            printable(entry)
        );
    }
    out
}

/// Places of which the trials say nothing, by the reason.
fn not_judged(verdicts: &RequestVerdicts) -> String {
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for verdict in &verdicts.places {
        let reason = match &verdict.fate {
            Fate::Passed | Fate::Known | Fate::Failed => continue,
            Fate::Declined => "declined (the kernel took no request there)".to_owned(),
            Fate::NotReached => "not reached".to_owned(),
            Fate::Refused(reason) => format!("refused ({})", general(reason, &verdict.place.seat)),
            Fate::Untested(reason) => format!("not tested ({reason})"),
        };
        let names = by_reason.entry(reason).or_default();
        names.push(verdict.place.to_string());
    }
    let mut out = String::new();
    for (reason, places) in by_reason {
        let names = list(places.iter().map(String::as_str));
        let (reason, count) = (printable(&reason), places.len());
        let _ = writeln!(out, "{reason}: {count} places: {names}");
    }
    if out.is_empty() {
        out
    } else {
        format!("\n{out}")
    }
}

/// A reason without the name of its place, so that places share it.
fn general(reason: &str, seat: &Seat) -> String {
    reason.replace(seat.name(), "it")
}

fn last_lines(tried: &TriedPlaces<'_>) -> String {
    let verdicts = tried.verdicts;
    let count = |is: fn(&Fate) -> bool| verdicts.count(is);
    let made = verdicts.places.len();
    // Merged parts took no time of their own.
    let rate = match tried.elapsed.as_secs_f64() {
        0.0 => String::new(),
        seconds => {
            let rate = made as f64 / seconds;
            format!("; {seconds:.1} s, {rate:.1} trials a second")
        }
    };
    let seats = |is: fn(&Seat) -> bool| {
        let seats = verdicts.places.iter().map(|it| &it.place.seat);
        seats.filter(|seat| is(seat)).collect::<BTreeSet<_>>().len()
    };
    let companies = |company| {
        let places = verdicts.places.iter();
        places.filter(|it| it.place.company == company).count()
    };
    let mut out = format!(
        "\n{made} of {} places tried ({} alone, {} beside the scenario's own events): {} pass, {} expected \
         failures, {} fail, {} declined, {} not reached, {} refused, {} not tested\n",
        tried.found,
        companies(Company::Alone),
        companies(Company::Beside),
        count(|it| *it == Fate::Passed),
        count(|it| *it == Fate::Known),
        count(|it| *it == Fate::Failed),
        count(|it| *it == Fate::Declined),
        count(|it| *it == Fate::NotReached),
        count(|it| matches!(it, Fate::Refused(_))),
        count(|it| matches!(it, Fate::Untested(_))),
    );
    let _ = writeln!(
        out,
        "at {} entries and {} returns of functions, and {} tracepoints{rate}",
        seats(|it| matches!(it, Seat::Entry { .. })),
        seats(|it| matches!(it, Seat::Return { .. })),
        seats(|it| matches!(it, Seat::Tracepoint { .. })),
    );
    let exercised = verdicts.exercised.iter();
    let exercised: Vec<String> = exercised
        .map(|(id, at)| format!("{} {at}", printable(id)))
        .collect();
    let _ = writeln!(
        out,
        "exercised, at so many places: {}",
        exercised.join(", ")
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_merged_have_no_rate() {
        let mut verdicts = RequestVerdicts::default();
        verdicts.exercised.insert("\u{1b}M1".to_owned(), 2);
        let told = |elapsed| {
            report(&TriedPlaces {
                verdicts: &verdicts,
                found: 0,
                elapsed,
            })
        };
        let merged = told(Duration::ZERO);
        assert!(merged.contains("and 0 tracepoints\n"), "{merged}");
        // An invariant of the file of a part is shown as text.
        assert!(merged.contains(": \\u{1b}M1 2\n"), "{merged}");
        let made = told(Duration::from_secs(2));
        assert!(
            made.contains("tracepoints; 2.0 s, 0.0 trials a second\n"),
            "{made}"
        );
    }
}
