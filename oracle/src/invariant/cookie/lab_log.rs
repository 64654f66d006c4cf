//! C1 to C7 on the lab client's log.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, Stay, task};
use crate::invariant::evidence::views::given;
use crate::invariant::limit::step;
use crate::trace::LabEvent;
use crate::trace::lab::LabKind;

/// C1: within one entry all requests of all clients get one cookie. Requests made while leaving may
/// have a new one, and are left out. Evidence are two between which no user instruction retired: two
/// NMIs in user mode have the number of one entry whatever lies between.
pub fn stability(lab: &Lab<'_>, tally: &mut Tally) {
    let mut migrated = 0;
    for stay in &lab.stays {
        let mut first: BTreeMap<u32, &LabEvent> = BTreeMap::new();
        for (request, _, cookie) in stay.accepted().filter(|(r, ..)| !r.flags.leaving) {
            let Some(earlier) = first.get(&request.entry) else {
                first.insert(request.entry, request);
                continue;
            };
            if earlier.cookie() == Some(cookie) {
                if lab.together(earlier, request, stay) {
                    tally.holds();
                    migrated += usize::from(earlier.cpu != request.cpu);
                } else {
                    tally.undecided("the task may have gone on after an NMI in user mode");
                    first.insert(request.entry, request);
                }
                continue;
            }
            let message = format!(
                "{} got cookie {:#x}, then {cookie:#x} in the same entry ({})",
                task(request),
                earlier.cookie().unwrap_or_default(),
                request.context.name()
            );
            let slots = [earlier.slot, request.slot];
            tally.violated_in_log(message, slots, request.interrupted());
            break;
        }
    }
    tally.note(migrated, "pairs of requests on two CPUs");
}

/// C2: two entries of a task have different cookies. C4 judges cookie 0. Evidence is an entry after
/// another of the same task: the first one has none to differ from.
pub fn freshness(lab: &Lab<'_>, tally: &mut Tally) {
    let mut seen: BTreeMap<(u32, u64), (usize, u64)> = BTreeMap::new();
    let mut begun: BTreeSet<u32> = BTreeSet::new();
    for (number, stay) in lab.stays.iter().enumerate() {
        let mut fresh = true;
        for (request, _, cookie) in stay.accepted().filter(|&(_, _, cookie)| cookie != 0) {
            let (of, slot) = *seen
                .entry((stay.task, cookie))
                .or_insert((number, request.slot));
            if of != number && fresh {
                fresh = false;
                let message = format!("{} got cookie {cookie:#x} in two entries", task(request));
                tally.violated_in_log(message, [slot, request.slot], request.interrupted());
            }
        }
        let asked = stay.accepted().next().is_some();
        if asked && !begun.insert(stay.task) && fresh {
            tally.holds();
        }
    }
}

/// C3: no two tasks share a cookie.
pub fn uniqueness(lab: &Lab<'_>, tally: &mut Tally) {
    let mut owners: BTreeMap<u64, &LabEvent> = BTreeMap::new();
    let mut tasks = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for (request, _, cookie) in lab.stays.iter().flat_map(Stay::accepted) {
        tasks.insert(request.task);
        let owner = *owners.entry(cookie).or_insert(request);
        if cookie != 0 && owner.task != request.task && shared.insert(cookie) {
            let message = format!(
                "cookie {cookie:#x} is of {} and of {}",
                task(owner),
                task(request)
            );
            let slots = [owner.slot, request.slot];
            tally.violated_in_log(message, slots, request.interrupted());
        }
    }
    if tasks.len() > 1 && shared.is_empty() {
        tally.holds_on(owners.len());
    }
}

/// C4: a cookie is a CPU number below an odd count.
pub fn format(lab: &Lab<'_>, tally: &mut Tally) {
    for event in &lab.log.events {
        let Some(cookie) = event.cookie() else {
            continue;
        };
        let (count, cpu) = (cookie >> 32, cookie & 0xffff_ffff);
        if (1..=u64::from(lab.trace.vcpus)).contains(&cpu) && count % 2 == 1 {
            tally.holds();
            continue;
        }
        let what = match event.kind {
            LabKind::Callback { .. } => "a callback",
            _ => "a request",
        };
        let message = format!("{what} of {} got cookie {cookie:#x}", task(event));
        let asked = led_to(lab, event);
        let slots = asked.map(|it| it.slot).into_iter().chain([event.slot]);
        tally.violated_in_log(message, slots, asked.and_then(LabEvent::interrupted));
    }
}

/// The last request of the task before a callback.
fn led_to<'t>(lab: &Lab<'t>, event: &LabEvent) -> Option<&'t LabEvent> {
    if !matches!(event.kind, LabKind::Callback { .. }) {
        return None;
    }
    let of_it = |it: &&LabEvent| {
        step();
        let asks = matches!(it.kind, LabKind::Request { .. });
        asks && it.task == event.task && it.client == event.client
    };
    let at = lab.log.events.partition_point(|it| it.slot < event.slot);
    { lab.log.events.get(..at).unwrap_or_default().iter() }.rfind(of_it)
}

/// A request that was the first to get its cookie.
struct Birth<'t> {
    event: &'t LabEvent,
    cookie: u64,
    /// When its task got or was called for another cookie before: if perf was first after all, that was later.
    since: Option<u64>,
}

/// Requests that were the first to get their cookie, by slot. The client logs a request before its
/// CPU runs another task, and whatever interrupts it asks for the same task. So the first request
/// in the log was made on the CPU on which the cookie was born. Cookies that perf or an instance of tracefs also got may
/// be theirs, and where that is not known, no birth is.
fn births<'t>(lab: &Lab<'t>) -> Vec<Birth<'t>> {
    let events = lab.trace.events.iter();
    let perf: BTreeSet<u64> = events
        .filter_map(|e| Some(e.deferred_sample()?.1))
        .collect();
    let Some(instances) = given(lab.trace) else {
        return Vec::new();
    };
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    let mut births = Vec::new();
    for event in &lab.log.events {
        let Some(cookie) = event.cookie() else {
            continue;
        };
        let since = last.insert(event.tid, event.time);
        let asks = matches!(event.kind, LabKind::Request { .. });
        let elsewhere = perf.contains(&cookie) || instances.contains(&cookie);
        if !asks || !seen.insert(cookie) || cookie == 0 || elsewhere || lab.hides_births(event.tid)
        {
            continue;
        }
        births.push(Birth {
            event,
            cookie,
            since,
        });
    }
    births
}

impl Birth<'_> {
    /// Why perf may have got the cookie first, in a sample that is lost.
    fn excuse(&self, lab: &Lab<'_>) -> Option<String> {
        let why = lab.losses.between(self.since, Some(self.event.time))?;
        Some(format!("cookie {:#x}: {why}", self.cookie))
    }
}

/// C5: the cookie names the CPU of its first request.
pub fn birth(lab: &Lab<'_>, tally: &mut Tally) {
    let mut right = Vec::new();
    for birth in births(lab) {
        let (event, cookie) = (birth.event, birth.cookie);
        if cookie & 0xffff_ffff == u64::from(event.cpu) + 1 {
            right.push(u64::from(event.cpu));
            continue;
        }
        if let Some(why) = birth.excuse(lab) {
            tally.excuse(why);
            continue;
        }
        let message = format!(
            "cookie {cookie:#x} was first given on CPU {}, to {}",
            event.cpu,
            task(event)
        );
        tally.violated_in_log(message, [event.slot], event.interrupted());
    }
    super::c5_birth::tell_apart(tally, &right);
}

/// C6: the counts of a CPU never go back.
pub fn order(lab: &Lab<'_>, tally: &mut Tally) {
    let mut last: BTreeMap<u16, (&LabEvent, u32)> = BTreeMap::new();
    for birth in births(lab) {
        let (event, cookie) = (birth.event, birth.cookie);
        let count = u32::try_from(cookie >> 32).unwrap_or_default();
        let Some((earlier, before)) = last.insert(event.cpu, (event, count)) else {
            continue;
        };
        // The count is a u32 that wraps: less than half its range ahead is ahead.
        if count.wrapping_sub(before) < 1 << 31 {
            tally.holds();
        } else if let Some(why) = birth.excuse(lab) {
            tally.excuse(why);
        } else {
            let message = format!(
                "CPU {} gave count {count} after {before} (cookie {cookie:#x})",
                event.cpu
            );
            tally.violated_in_log(message, [earlier.slot, event.slot], None);
        }
    }
}

/// C7: the cookie of a callback is one that the task got.
pub fn origin(lab: &Lab<'_>, tally: &mut Tally) {
    let events = lab.trace.events.iter();
    let samples = events.filter_map(|e| Some((e.tid?, e.deferred_sample()?.1)));
    let perf: BTreeSet<(u32, u64)> = samples.collect();
    let mut given: BTreeSet<(u32, u64)> = BTreeSet::new();
    for event in &lab.log.events {
        let Some(cookie) = event.cookie() else {
            continue;
        };
        if let LabKind::Request { .. } = event.kind {
            given.insert((event.task, cookie));
            continue;
        }
        if given.contains(&(event.task, cookie)) || perf.contains(&(event.tid, cookie)) {
            tally.holds();
            continue;
        }
        let message = format!(
            "{} was called for cookie {cookie:#x}, given to nobody",
            task(event)
        );
        let asked = led_to(lab, event);
        let slots = asked.map(|it| it.slot).into_iter().chain([event.slot]);
        tally.violated_in_log(message, slots, asked.and_then(LabEvent::interrupted));
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, STACK, client, holds, not_exercised, violated,
    };
    use crate::invariant::testkit::{Kit, judged};
    use crate::trace::tracefs::{TracefsClient, TracefsEvent, TracefsKind, TracefsTrace};

    #[test]
    fn c1_two_cookies_in_one_entry() {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let b = kit.on(1).ask(1, client(1), 0, NEXT);
        assert_eq!(violated("C1", &kit), [a, b]);
    }

    #[test]
    fn c1_a_new_cookie_while_leaving_is_the_exception() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.call(1, client(0), C, &STACK);
        let late = kit
            .nmi()
            .with(|f| f.leaving = true)
            .ask(1, client(0), 0, NEXT);
        let left = kit.leave(1);
        let mut unrelated = kit.clone();
        // The self-interrupt.
        kit.ask(1, client(1), 0, NEXT);
        kit.call(1, client(0), NEXT, &STACK);
        kit.call(1, client(1), NEXT, &STACK);
        kit.leave_from(1, 0x40, true);
        // A system call answers nothing of before.
        unrelated.call(1, client(0), NEXT, &STACK);
        unrelated.leave(1);
        let completeness = "M1";
        assert_eq!(violated(completeness, &unrelated), [late, left]);
        not_exercised("C1", &kit);
        // All of it counts as one entry.
        not_exercised("C2", &kit);
        for invariant in ["M1", "D2", "R1"] {
            holds(invariant, &kit);
        }
    }

    #[test]
    fn c1_two_nmis_in_user_mode_may_be_of_two_entries() {
        let mut kit = LabKit::new();
        for ip in [0x1004, 0x1008] {
            let asked = kit.nmi_at(ip).with(|f| f.user = true);
            asked.ask(1, client(0), 0, C);
        }
        not_exercised("C1", &kit);
        kit.ask(1, client(0), 1, C);
        kit.ask(1, client(0), 1, C);
        assert_eq!(holds("C1", &kit).0, 1);
    }

    #[test]
    fn c2_a_request_of_perf_behind_the_exit_work_keeps_the_cookie() {
        for keeps in [true, false] {
            let mut kit = LabKit::new();
            kit.ask(1, client(0), 0, C);
            kit.call(1, client(0), C, &STACK);
            if keeps {
                kit.perf.nmi(0, 1001, C);
            }
            kit.leave_from(1, 0x40, true);
            let again = kit.nmi_at(0x40).with(|f| f.user = true);
            again.ask(1, client(0), 1, C);
            kit.leave_from(1, 0x40, true);
            match keeps {
                true => not_exercised("C2", &kit),
                false => assert_eq!(violated("C2", &kit).len(), 2),
            }
        }
    }

    #[test]
    fn c2_one_cookie_in_two_entries() {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        kit.leave(1);
        let b = kit.ask(1, client(0), 0, C);
        assert_eq!(violated("C2", &kit), [a, b]);
    }

    #[test]
    fn c3_one_cookie_of_two_tasks() {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let b = kit.ask(2, client(0), 0, C);
        assert_eq!(violated("C3", &kit), [a, b]);
    }

    #[test]
    fn c4_cookies_that_are_none() {
        for cookie in [0, 3 << 32, 4 << 32 | 1, 3 << 32 | 3] {
            let mut kit = LabKit::new();
            let a = kit.ask(1, client(0), 0, cookie);
            assert_eq!(violated("C4", &kit), [a]);
        }
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let b = kit.call(1, client(0), 0, &STACK);
        assert_eq!(violated("C4", &kit), [a, b]);
    }

    #[test]
    fn c5_a_cookie_of_another_cpu() {
        let mut kit = LabKit::new();
        let a = kit.on(1).ask(1, client(0), 0, C);
        assert_eq!(violated("C5", &kit), [a]);
        // perf may have been first, on the other CPU.
        kit.perf.nmi(0, 1001, C);
        not_exercised("C5", &kit);
    }

    #[test]
    fn c6_a_count_that_goes_back() {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, NEXT);
        let b = kit.ask(2, client(0), 0, C);
        assert_eq!(violated("C6", &kit), [a, b]);
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, 0xffff_ffff << 32 | 1);
        kit.ask(2, client(0), 0, 1 << 32 | 1);
        holds("C6", &kit);
    }

    #[test]
    fn c7_a_callback_for_a_cookie_of_nobody() {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let b = kit.call(1, client(0), NEXT, &STACK);
        assert_eq!(violated("C7", &kit), [a, b]);
        // perf asked.
        kit.perf.nmi(0, 1001, NEXT);
        holds("C7", &kit);
    }

    #[test]
    fn c1_pairs_on_two_cpus_are_counted() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.ask(1, client(0), 1, C);
        kit.on(1).ask(1, client(0), 1, C);
        let (evidence, notes) = holds("C1", &kit);
        assert_eq!(
            (evidence, notes),
            (2, vec!["1 pairs of requests on two CPUs".to_owned()])
        );
    }

    #[test]
    fn c3_one_task_shares_with_nobody() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.leave(1);
        kit.ask(1, client(0), 0, NEXT);
        not_exercised("C3", &kit);
    }

    #[test]
    fn c4_a_callback_for_a_bad_cookie_goes_with_the_last_request_of_its_client() {
        let mut kit = LabKit::new();
        let asked = kit.ask(1, client(0), 0, C);
        kit.ask(1, client(1), 0, C);
        kit.ask(2, client(0), 0, C);
        let called = kit.call(1, client(0), 0, &STACK);
        assert_eq!(violated("C4", &kit), [asked, called]);
        let list = crate::invariant::testkit::violated("C4", &kit.trace());
        assert!(list[0].message.starts_with("a callback of task 1001"));
    }

    #[test]
    fn c6_half_the_range_ahead_is_behind() {
        let counts = |second: u64| {
            let mut kit = LabKit::new();
            kit.ask(1, client(0), 0, 1 << 32 | 1);
            kit.leave(1);
            kit.ask(1, client(0), 0, second << 32 | 1);
            kit
        };
        assert_eq!(holds("C6", &counts(1 << 31)).0, 1);
        violated("C6", &counts(1 + (1 << 31)));
    }

    /// A birth on another CPU, and one whose count falls.
    fn born_wrongly() -> [(&'static str, LabKit); 2] {
        let mut elsewhere = LabKit::new();
        elsewhere.on(1).ask(1, client(0), 0, C);
        let mut fallen = LabKit::new();
        fallen.ask(1, client(0), 0, NEXT);
        fallen.ask(2, client(0), 0, C);
        [("C5", elsewhere), ("C6", fallen)]
    }

    #[test]
    fn what_an_instance_of_tracefs_may_have_got_first_is_no_birth() {
        let request = |cookie| TracefsEvent {
            client: 0,
            cpu: 0,
            position: 0,
            buffer: usize::MAX,
            start: 0,
            size: 0,
            time: 0,
            tid: 1001,
            kind: TracefsKind::Request {
                cookie,
                asker: None,
            },
        };
        for (id, kit) in born_wrongly() {
            for (got, lost, wrong) in [
                (C, 0, false),
                (7 << 32 | 1, 0, true),
                (7 << 32 | 1, 1, false),
            ] {
                let mut trace = kit.trace();
                let instance = TracefsClient {
                    lost,
                    ..TracefsClient::default()
                };
                trace.tracefs = Some(TracefsTrace {
                    clients: vec![instance],
                    events: vec![request(got)],
                });
                let found = crate::invariant::testkit::violated(id, &trace);
                assert_eq!(!found.is_empty(), wrong, "{id} {got:#x} {lost}: {found:?}");
            }
        }
    }

    #[test]
    fn what_perf_may_have_got_first_is_no_birth() {
        for (id, kit) in born_wrongly() {
            let mut trace = kit.trace();
            let mut perf = Kit::new(2);
            perf.lost(0, 1);
            trace.events = perf.trace().events;
            assert!(!judged(id, &trace).2, "{id}");
            // A chain without room for the cookie.
            for (tid, wrong) in [(1001, false), (1003, true)] {
                let mut perf = Kit::new(2);
                perf.kernel_only(0, tid);
                let mut trace = kit.trace();
                trace.events = perf.trace().events;
                let name = "perf_event_max_contexts_per_stack".to_owned();
                trace.sysctls.push((name, "1".to_owned()));
                // Of the two tasks of C6, either is enough.
                assert_eq!(judged(id, &trace).2, wrong, "{id} {tid}");
            }
        }
    }
}
