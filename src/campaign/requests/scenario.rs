//! A scenario with one more tracer.
//!
//! The scenario of a trial is written as text, so that a replay file has all of it, and whoever gets
//! one can read and change it. The text is JSON, which is YAML too.

use serde_json::{Map, Value, json};

use crate::campaign::error::RequestsError;
use crate::judge::requests::{ASKER, Company, Place, Seat};
use unwindlab_scenario::check::check;
use unwindlab_scenario::parse::parse;
use unwindlab_scenario::{Loaded, ScenarioErrors};

/// The event that receives the stacks.
const TRACKING: &str = "tracking";
/// Data pages of a ring, where the scenario says nothing: a place may be passed by every task, many
/// times a system call.
const RING_PAGES: u32 = 256;
/// Keys that say what comes of a scenario as it was written.
const EXPECTATIONS: [&str; 4] = ["expect", "require", "snapshot", "explore"];
/// As in `scenario::events`.
const FOREVER: u64 = 1 << 46;

/// The scenario of a trial; without a place, that of a survey.
pub(super) fn trial(
    loaded: &Loaded,
    place: Option<&Place>,
    company: Company,
    number: usize,
    invariants: &[&str],
) -> Result<Loaded, RequestsError> {
    let name = name(loaded, place, company, number);
    let text = text(loaded, place, company, &name)?;
    let file = format!("{}, {name}", loaded.file);
    let scenario = parse(&file, &text).and_then(|it| check(&file, &name, it, invariants));
    Ok(Loaded {
        scenario: scenario.map_err(|errors: ScenarioErrors| RequestsError::Written(errors))?,
        file,
        text,
        snapshot: None,
    })
}

/// `nmi-in-syscall-17-kprobe-x64-sys-getppid-alone`.
fn name(loaded: &Loaded, place: Option<&Place>, company: Company, number: usize) -> String {
    let seat = place.map_or_else(|| "survey".to_owned(), |it| it.seat.to_string());
    let seat = seat.to_ascii_lowercase();
    let words = seat.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let (name, words) = (loaded.scenario.name.as_str(), words.join("-"));
    format!("{name}-{number}-{words}-{}", company.word())
}

fn text(
    loaded: &Loaded,
    place: Option<&Place>,
    company: Company,
    name: &str,
) -> Result<String, RequestsError> {
    let unreadable = |why: String| RequestsError::Unreadable {
        file: loaded.file.clone(),
        why,
    };
    let value: Value = serde_saphyr::from_str(&loaded.text)
        .map_err(|error| unreadable(error.without_snippet().to_string()))?;
    let Value::Object(mut scenario) = value else {
        return Err(unreadable("it has no keys".to_owned()));
    };
    if scenario.contains_key("perf-tool") {
        return Err(RequestsError::PerfTool(loaded.file.clone()));
    }
    for key in EXPECTATIONS {
        scenario.remove(key);
    }
    scenario.insert("name".to_owned(), json!(name));
    let mut perf = match scenario.remove("perf") {
        Some(Value::Object(perf)) => perf,
        _ => Map::new(),
    };
    let own = own_events(&scenario, &mut perf);
    if company == Company::Alone {
        scenario.remove("lab");
    }
    let mut events = match company {
        Company::Beside => own,
        Company::Alone => vec![tracking()],
    };
    if let Some(place) = place {
        events.push(asker(place, &events));
    }
    perf.insert("events".to_owned(), Value::Array(events));
    perf.insert("markers".to_owned(), json!(true));
    perf.entry("ring-pages").or_insert(json!(RING_PAGES));
    scenario.insert("perf".to_owned(), Value::Object(perf));
    Ok(Value::Object(scenario).to_string())
}

fn tracking() -> Value {
    json!({ "name": TRACKING, "event": "dummy", "defer-output": true, "task": true })
}

/// The tracer at a place. Its records are in the ring of the first event that has one.
fn asker(place: &Place, others: &[Value]) -> Value {
    let owner = others.iter().find(|it| it.get("output-to").is_none());
    let ring = owner.and_then(|it| it.get("name")).cloned();
    json!({
        "name": ASKER,
        "event": place.seat.to_string(),
        "period": period(&place.seat),
        "sample": ["ip", "callchain"],
        "defer-callchain": true,
        "output-to": ring.unwrap_or_else(|| json!(TRACKING)),
    })
}

/// The period of the tracer at a place: it asks each time. The statistics of the scheduler count
/// nanoseconds, not occurrences (`__perf_count`, include/trace/events/sched.h): with a period of 1
/// there would be as many samples, one after the other.
fn period(seat: &Seat) -> u64 {
    const MILLISECOND: u64 = 1_000_000;
    match seat {
        Seat::Tracepoint { system, name }
            if system == "sched" && name.starts_with("sched_stat") =>
        {
            MILLISECOND
        }
        _ => 1,
    }
}

/// The scenario's own events: written, or those that it has by default (`scenario::events`).
fn own_events(scenario: &Map<String, Value>, perf: &mut Map<String, Value>) -> Vec<Value> {
    if let Some(Value::Array(written)) = perf.remove("events") {
        return written;
    }
    let counters = scenario.get("machine").and_then(|it| it.get("pmu"));
    let counters = counters.and_then(Value::as_str).unwrap_or("none");
    let (name, event, period) = match counters {
        _ if scenario.contains_key("lab") => ("enter", "raw_syscalls:sys_enter", 1),
        "none" => ("nmi", "nmi:nmi_handler", 1),
        _ => ("cycles", "cycles", FOREVER),
    };
    let mut sampler = json!({
        "name": name,
        "event": event,
        "period": period,
        "sample": ["ip", "callchain"],
        "defer-callchain": true,
        "output-to": TRACKING,
    });
    if let (Some(max_stack), Value::Object(sampler)) = (perf.remove("max-stack"), &mut sampler) {
        sampler.insert("max-stack".to_owned(), max_stack);
    }
    vec![tracking(), sampler]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name: s
description: d
workload: { kind: syscalls, frames: 13 }
perf: { max-stack: 5, switches: true }
inject:
  - nmi: { at: { kernel: f }, repeat: 20 }
settle: 20 ms
expect: { samples: 20 }
snapshot: events
";

    fn loaded(text: &str) -> Loaded {
        let scenario = parse("s.yaml", text).unwrap();
        Loaded {
            file: "s.yaml".to_owned(),
            text: text.to_owned(),
            scenario: check("s.yaml", "s", scenario, &[]).unwrap(),
            snapshot: Some("events".to_owned()),
        }
    }

    fn place(company: Company) -> Place {
        Place {
            seat: Seat::Entry {
                function: "__x64_sys_getppid".to_owned(),
            },
            company,
            hits: 1,
            contexts: 0,
        }
    }

    fn of(text: &str, company: Company) -> Loaded {
        trial(&loaded(text), Some(&place(company)), company, 7, &[]).unwrap()
    }

    fn events(loaded: &Loaded) -> Vec<(String, String, bool)> {
        let events = loaded.scenario.perf.events.as_ref().unwrap().iter();
        let event = |it: &unwindlab_scenario::model::PerfEvent| {
            (
                it.name.to_string(),
                it.event.to_string(),
                it.defer_callchain,
            )
        };
        events.map(event).collect()
    }

    fn event(name: &str, event: &str, asks: bool) -> (String, String, bool) {
        (name.to_owned(), event.to_owned(), asks)
    }

    #[test]
    fn alone_nobody_else_asks() {
        let alone = of(TEXT, Company::Alone);
        assert_eq!(*alone.scenario.name, "s-7-kprobe-x64-sys-getppid-alone");
        let asker = event("asker", "kprobe:__x64_sys_getppid", true);
        assert_eq!(events(&alone), [event("tracking", "dummy", false), asker]);
        assert_eq!(alone.scenario.inject.len(), 1);
        assert!(alone.scenario.perf.markers && alone.scenario.perf.switches);
        assert!(alone.scenario.snapshot.is_none() && alone.snapshot.is_none());
        assert!(alone.scenario.expect.samples.is_none());
        let lab = TEXT.replace("settle", "lab: { clients: 2, ask: [{ at: nmi }] }\nsettle");
        let lab = lab.replace("max-stack: 5, ", "");
        assert!(of(&lab, Company::Alone).scenario.lab.is_none());
    }

    #[test]
    fn beside_the_scenarios_own_events_ask_too() {
        let beside = of(TEXT, Company::Beside);
        let asker = event("asker", "kprobe:__x64_sys_getppid", true);
        let own = [
            event("tracking", "dummy", false),
            event("nmi", "nmi:nmi_handler", true),
        ];
        assert_eq!(
            events(&beside),
            [own[0].clone(), own[1].clone(), asker.clone()]
        );
        let sampler = &beside.scenario.perf.events.as_ref().unwrap()[1];
        assert_eq!(sampler.max_stack.as_ref().map(|it| **it), Some(5));
        let lab = TEXT.replace("settle", "lab: { clients: 2, ask: [{ at: nmi }] }\nsettle");
        let lab = of(&lab, Company::Beside);
        assert!(lab.scenario.lab.is_some());
        assert_eq!(events(&lab)[1].1, "raw_syscalls:sys_enter");
        let written = TEXT.replace(
            "max-stack: 5, ",
            "events: [{ name: own, event: dummy, defer-output: true, task: true }], ",
        );
        let written = of(&written, Company::Beside);
        assert_eq!(events(&written), [event("own", "dummy", false), asker]);
    }

    #[test]
    fn what_counts_time_is_not_sampled_at_each_nanosecond() {
        let period_of = |name: &str| {
            let system = "sched".to_owned();
            let name = name.to_owned();
            let mut place = place(Company::Alone);
            place.seat = Seat::Tracepoint { system, name };
            let trial = trial(&loaded(TEXT), Some(&place), Company::Alone, 0, &[]).unwrap();
            trial.scenario.perf.events.as_ref().unwrap()[1].period
        };
        assert_eq!(period_of("sched_stat_runtime"), 1_000_000);
        assert_eq!(period_of("sched_switch"), 1);
    }

    #[test]
    fn a_trial_can_be_read_again() {
        let first = of(TEXT, Company::Beside);
        let again = parse("x.yaml", &first.text).unwrap();
        assert!(check("x.yaml", &first.scenario.name, again, &[]).is_ok());
    }
}
