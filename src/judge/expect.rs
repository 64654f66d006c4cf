//! The expectations of a scenario, checked beside the invariants.

use super::counts::Counts;
use unwindlab_abi::plan::EventSpec;
use unwindlab_abi::user_mode::Asked;
use unwindlab_oracle::trace::{Event, EventKind, LabKind, LabTrace, Trace};
use unwindlab_scenario::located::At;
use unwindlab_scenario::model::Expect;
use unwindlab_scenario::units::Count;

/// The unmet expectations, in a line each.
pub(super) fn unmet(expect: &Expect, counts: &Counts, trace: &Trace) -> Vec<String> {
    let numbers = [
        ("samples", &expect.samples, counts.samples),
        ("deferred chains", &expect.deferred, counts.deferred),
        ("cookies", &expect.cookies, counts.cookies),
        ("late samples", &expect.late, counts.late),
        ("lost records", &expect.lost, counts.lost),
        ("nonces", &expect.nonces, counts.nonces),
        ("uses of a pending nonce", &expect.reused, counts.reused),
        ("refused signals", &expect.refused, counts.refused),
        ("signals refused with EBUSY", &expect.busy, counts.busy),
        (
            "samples of who has not opted in",
            &expect.unasked,
            counts.unasked,
        ),
        (
            "changes of what a program sees",
            &expect.changed,
            counts.changed,
        ),
        ("results", &expect.results, counts.results),
        ("late results", &expect.late_results, counts.late_results),
        ("wrong results", &expect.wrong_results, counts.wrong_results),
        ("values of signals", &expect.values, counts.values),
        ("overruns", &expect.overruns, counts.overruns),
        ("results of strangers", &expect.strangers, counts.strangers),
    ];
    let mut reasons: Vec<String> = numbers
        .into_iter()
        .filter_map(|(what, expected, found)| {
            let expected = value(expected)?;
            (!expected.admits(found)).then(|| format!("{found} {what}, expected {expected}"))
        })
        .collect();
    let refused = value(&expect.refused);
    if refused.is_some_and(|it| !it.admits(counts.refused)) {
        reasons.extend(refusals(trace));
    }
    if let Some(expected) = value(&expect.frames) {
        reasons.extend(frames(expected, counts));
    }
    if let Some(expected) = value(&expect.progress) {
        reasons.extend(progress(expected, trace));
    }
    reasons
}

/// Events that make requests were opened, and none was made: whatever else the trace shows, what
/// the scenario is about did not happen. One that expects a number of samples says itself whether
/// that is right.
pub(super) fn no_request(expect: &Expect, trace: &Trace) -> Option<String> {
    if expect.samples.is_some() {
        return None;
    }
    let asks = |spec: &EventSpec| spec.defer_callchain && spec.sample_period > 0;
    let tracing = trace.tracing.as_ref()?;
    if !tracing.events.iter().any(asks) {
        return None;
    }
    let sampled = |event: &Event| matches!(event.kind, EventKind::Sample(_));
    let of_a_client = |log: &LabTrace| {
        let kinds = log.events.iter().map(|event| &event.kind);
        { kinds }.any(|kind| matches!(kind, LabKind::Request { .. }))
    };
    if trace.events.iter().any(sampled) || trace.lab.as_ref().is_some_and(of_a_client) {
        return None;
    }
    Some(
        "no request was made: no event gave a sample; if that is right, expect `samples: 0`"
            .to_owned(),
    )
}

fn value(written: &Option<At<Count>>) -> Option<Count> {
    written.as_ref().map(|count| **count)
}

/// What the kernel answered to the signals that it refused.
fn refusals(trace: &Trace) -> Option<String> {
    let requests = trace.user_mode.iter().flat_map(|it| &it.requests);
    let refused = requests.filter(|it| it.asked == Asked::Refused);
    let answers: Vec<String> = refused.map(|it| it.answer.to_string()).collect();
    (!answers.is_empty()).then(|| format!("signals were refused with {}", answers.join(", ")))
}

fn frames(expected: Count, counts: &Counts) -> Vec<String> {
    if counts.frames.is_empty() {
        return vec![format!(
            "no deferred chain, expected {expected} frames in each"
        )];
    }
    counts
        .frames
        .iter()
        .filter(|&(&frames, _)| !expected.admits(frames))
        .map(|(frames, chains)| {
            format!("{chains} deferred chains of {frames} frames, expected {expected}")
        })
        .collect()
}

fn progress(expected: Count, trace: &Trace) -> Vec<String> {
    if trace.progress.is_empty() {
        return vec![format!(
            "no progress was recorded, expected {expected} iterations"
        )];
    }
    trace
        .progress
        .iter()
        .filter_map(|it| {
            let made = it.at_last_injection.saturating_sub(it.at_first_injection);
            (!expected.admits(made)).then(|| {
                format!(
                    "thread {} made {made} iterations between the first and the last injection, \
                     expected {expected}",
                    it.thread
                )
            })
        })
        .collect()
}
