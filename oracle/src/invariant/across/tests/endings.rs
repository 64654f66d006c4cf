//! What an instance need not show that is cancelled, registered anew or removed, or whose buffer is full.

use super::*;

#[test]
fn each_registration_of_an_instance_is_answered_once() {
    // The second answer of instance a, and where its option was cleared: so many ns behind its first.
    let judged = |cleared: Option<u64>, lost: u64| {
        let mut trace = mirrored(two_entries());
        let tracefs = trace.tracefs.as_mut().unwrap();
        tracefs.clients[0].cancels = cleared.is_some();
        tracefs.clients[0].lost = lost;
        let first = tracefs.events.iter().find(|it| of_a(it, true)).unwrap();
        let at = |by: u64, kind: TracefsKind| TracefsEvent {
            position: first.position + 1000,
            time: first.time + by,
            kind,
            ..first.clone()
        };
        let again = at(4, first.kind.clone());
        let cleared = cleared.map(|by| at(by, TracefsKind::Cleared));
        tracefs.events.extend(cleared.into_iter().chain([again]));
        check("M2", &trace)
    };
    let Check::Holds { evidence, .. } = judged(Some(2), 0) else {
        panic!("{:?}", judged(Some(2), 0));
    };
    // One of perf and one of instance b for each entry, and a's own three.
    assert_eq!(evidence, 7);
    for elsewhere in [None, Some(0), Some(5)] {
        assert!(matches!(judged(elsewhere, 0), Check::Violated(_)));
    }
    // The note may be what was lost. Where there can be none, it was not.
    assert!(!matches!(judged(Some(5), 1), Check::Violated(_)));
    assert!(matches!(judged(None, 1), Check::Violated(_)));
}

#[test]
fn a_second_answer_may_be_what_an_instance_lost() {
    let evidence = |lost| {
        let mut trace = mirrored(two_entries());
        trace.tracefs.as_mut().unwrap().clients[0].lost = lost;
        match check("M2", &trace) {
            Check::Holds { evidence, .. } => evidence,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((evidence(0), evidence(1)), (6, 4));
}

#[test]
fn what_an_instance_that_was_removed_has_asked_for_need_not_come() {
    let mut trace = mirrored(two_entries());
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.clients[0].cancels = true;
    tracefs.clients[0].ends_early = true;
    tracefs.events.retain(|it| !of_a(it, true));
    let (fallen, _) = judge(&trace);
    assert!(!falls(&fallen, "M1"), "{fallen:#?}");
}

/// Two entries, of which the first stack (or request) of instance a is not there.
fn without_first(stack: bool) -> Trace {
    let mut trace = mirrored(two_entries());
    let events = &mut trace.tracefs.as_mut().unwrap().events;
    let first = events.iter().position(|it| of_a(it, stack)).unwrap();
    events.remove(first);
    trace
}

/// The time of the first stack (or request) of instance a.
fn first_time(trace: &Trace, stack: bool) -> u64 {
    let mut events = trace.tracefs.iter().flat_map(|it| &it.events);
    events.find(|it| of_a(it, stack)).unwrap().time
}

/// What instance a has asked for first is not answered, and its buffer may be full from so many ns behind that on, or nobody knows when.
fn unanswered_and_lost(full: Option<u64>) -> Check {
    let mut trace = without_first(true);
    let from = full.map(|by| first_time(&trace, false) + by);
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.clients[0].lost = u64::MAX;
    tracefs.clients[0].full_from = from;
    check("M1", &trace)
}

#[test]
fn what_was_asked_for_before_a_buffer_was_full_must_come() {
    let long_after = unanswered_and_lost(Some(100_000));
    assert!(matches!(long_after, Check::Violated(_)), "{long_after:?}");
    let mut undecided_of = Vec::new();
    for full in [Some(1), None] {
        let check = unanswered_and_lost(full);
        let Check::Holds {
            undecided, excused, ..
        } = check
        else {
            panic!("{check:?}");
        };
        undecided_of.push(undecided);
        let is_told = excused
            .iter()
            .any(|it| it.starts_with("instance a: not judged"));
        assert_eq!(is_told, full.is_none(), "{excused:?}");
    }
    // The one that may have been lost, and the two behind it, whose entries are not known.
    assert_eq!(undecided_of[0], undecided_of[1] + 3);
}

#[test]
fn an_answer_of_another_entry_may_have_followed_one_that_was_lost() {
    let with = |full: Option<u64>| {
        let mut trace = without_first(true);
        let asked = first_time(&trace, false);
        let tracefs = trace.tracefs.as_mut().unwrap();
        for event in tracefs.events.iter_mut().filter(|it| it.client == 0) {
            if let TracefsKind::Request { cookie, .. } | TracefsKind::Stack { cookie, .. } =
                &mut event.kind
            {
                *cookie = C;
            }
        }
        tracefs.clients[0].lost = u64::MAX;
        tracefs.clients[0].full_from = full.map(|by| asked + by);
        check("M1", &trace)
    };
    let long_after = with(Some(100_000));
    assert!(matches!(long_after, Check::Violated(_)), "{long_after:?}");
    let at_once = with(Some(1));
    assert!(!matches!(at_once, Check::Violated(_)), "{at_once:?}");
}

#[test]
fn what_was_answered_before_a_buffer_was_full_must_have_been_asked_for() {
    let mut trace = without_first(false);
    let answered = first_time(&trace, true);
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.clients[0].lost = u64::MAX;
    for id in ["C7", "M3"] {
        for (full, violated) in [
            (Some(answered), true),
            (Some(answered - 1), false),
            (None, false),
        ] {
            trace.tracefs.as_mut().unwrap().clients[0].full_from = full;
            let check = check(id, &trace);
            assert_eq!(matches!(check, Check::Violated(_)), violated, "{check:?}");
        }
    }
}

/// Instance a is cancelled from `may_end` to `cleared`, so many ns behind its first request, which is not answered.
fn unanswered(may_end: Option<u64>, cleared: Option<u64>) -> Check {
    let mut trace = without_first(true);
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.clients[0].cancels = true;
    let asked = tracefs.events.iter().find(|it| of_a(it, false)).unwrap();
    let note = |by: u64, kind: TracefsKind| TracefsEvent {
        position: asked.position + 1000,
        time: asked.time + by,
        tid: 7,
        kind,
        ..asked.clone()
    };
    let notes = [
        may_end.map(|by| note(by, TracefsKind::MayEnd)),
        cleared.map(|by| note(by, TracefsKind::Cleared)),
    ];
    tracefs.events.extend(notes.into_iter().flatten());
    check("M1", &trace)
}

#[test]
fn what_was_asked_for_in_an_entry_that_was_over_before_a_cancellation_must_come() {
    let violated = |it| matches!(it, Check::Violated(_));
    // Never cancelled, or long after the other entry.
    assert!(violated(unanswered(None, None)));
    assert!(violated(unanswered(Some(100_000), Some(100_001))));
    // At once, without an end, without a known begin.
    for (may_end, cleared) in [(Some(1), Some(2)), (Some(1), None), (None, Some(100_000))] {
        let check = unanswered(may_end, cleared);
        let Check::Holds { undecided, .. } = check else {
            panic!("{check:?}");
        };
        assert!(undecided > 0, "{check:?}");
    }
}

/// The answer of one registration is none for the next one, though the cookie is the same.
#[test]
fn each_registration_of_an_instance_needs_its_own_answer() {
    let judged = |cleared: bool| {
        let mut trace = mirrored(two_entries());
        let tracefs = trace.tracefs.as_mut().unwrap();
        tracefs.clients[0].cancels = true;
        let first = tracefs.events.iter().find(|it| of_a(it, true)).unwrap();
        let cookie = match first.kind {
            TracefsKind::Stack { cookie, .. } => cookie,
            _ => unreachable!(),
        };
        let at = |by: u64, kind: TracefsKind| TracefsEvent {
            position: first.position + 1000,
            time: first.time + by,
            kind,
            ..first.clone()
        };
        let notes = [at(1, TracefsKind::MayEnd), at(2, TracefsKind::Cleared)];
        let again = at(
            3,
            TracefsKind::Request {
                cookie,
                asker: None,
            },
        );
        let notes = notes.into_iter().filter(|_| cleared);
        tracefs.events.extend(notes.chain([again]));
        matches!(check("M1", &trace), Check::Violated(_))
    };
    assert!(judged(true) && !judged(false));
}
