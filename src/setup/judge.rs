//! What must come of a set-up, by the ABI, and what did come.
//!
//! The reference shows each stay of the workload's thread in the kernel: the markers of its system
//! calls, and the record 22 that answers the requests made in it. Each event of the set-up must
//! have, for exactly the stays that it is told of, one sample or one record 22 with the same
//! cookie, in the same order.

use std::collections::BTreeMap;

use super::entries::{Entries, Entry, Place};
use super::expect::Role;
use super::factors::{Factor, Setup};
use super::session::{ITERATIONS, name};
use unwindlab_abi::Observation;
use unwindlab_oracle::invariant::{Invariant, Violation};
use unwindlab_oracle::trace::model::CONTEXT_USER_DEFERRED;
use unwindlab_oracle::trace::{Event, EventKind, Trace};

/// What came of one set-up.
#[derive(Debug, Default)]
pub struct Judged {
    /// What is not as the ABI says.
    pub failures: Vec<Failure>,
    /// What could not be decided.
    pub undecided: Vec<String>,
    /// Samples and records 22 that had to be there, and are.
    pub held: usize,
}

/// One thing that is not as the ABI says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What; the same text for the same failure of another set-up.
    pub what: String,
    /// The values that show it.
    pub detail: String,
    /// The open event that lacks every record 22, by its index in the trace.
    pub receiver: Option<usize>,
}

impl Failure {
    /// A failure that is no event's lack of all records 22.
    #[must_use]
    pub fn new(what: String, detail: String) -> Self {
        Self {
            what,
            detail,
            receiver: None,
        }
    }

    /// What it violates, by which a finding is recognized.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        Some(Violation {
            invariant: "A3".to_owned(),
            message: self.what.clone(),
            events: Vec::new(),
            log: Vec::new(),
            instruction: None,
            receiver: Some(self.receiver?),
        })
    }
}

/// The invariants that can judge a set-up.
///
/// - Where its operation turns a receiver off, A3 (every receiver gets every record 22) is for
///   [`judge`], which knows when it is off. So it is where an event that receives asks too: the
///   agent asks while it turns one after the other off.
#[must_use]
pub fn invariants(all: &[Invariant], setup: &Setup) -> Vec<Invariant> {
    let operation = setup.level(Factor::Operation);
    let off = ["disable", "refresh", "close", "pause"];
    let turns_off = off.iter().any(|it| operation.starts_with(it));
    let both = !setup.is(Factor::Receiver, "another") || !setup.is(Factor::Sessions, "1");
    let applies = |invariant: &&Invariant| match invariant.id {
        "A3" => !turns_off && !both,
        _ => true,
    };
    all.iter().filter(applies).copied().collect()
}

/// Judges the trace of a set-up.
#[must_use]
pub fn judge(setup: &Setup, trace: &Trace) -> Judged {
    let mut judged = Judged::default();
    refusals(trace, &mut judged);
    let Some(entries) = Entries::of(trace, setup) else {
        judged
            .undecided
            .push("the reference lost records".to_owned());
        return judged;
    };
    if entries.of_workload() != ITERATIONS {
        judged.undecided.push(format!(
            "the reference shows {} iterations of {ITERATIONS}",
            entries.of_workload()
        ));
        return judged;
    }
    let session = Session {
        setup,
        trace,
        entries,
    };
    match session.unknown() {
        Some(why) => judged.undecided.push(why.to_owned()),
        None => session.judge(&mut judged),
    }
    judged
}

/// What `perf_event_open` refused: every set-up is one that it must accept.
fn refusals(trace: &Trace, judged: &mut Judged) {
    for seen in &trace.observations {
        if let Observation::Refused { spec, errno, .. } = seen {
            let name = spec_name(trace, *spec);
            let what = format!("perf_event_open refuses the {name} with errno {errno}");
            judged.failures.push(Failure::new(what, String::new()));
        }
    }
}

fn spec_name(trace: &Trace, spec: u32) -> &str {
    let specs = trace.tracing.as_ref().map(|it| it.events.as_slice());
    let spec = specs.and_then(|specs| specs.get(usize::try_from(spec).ok()?));
    spec.map_or("", |spec| &spec.name)
}

/// Whether the chain of a sample ends with the deferred marker.
fn ends_with_marker(event: &Event) -> bool {
    let EventKind::Sample(sample) = &event.kind else {
        return false;
    };
    let last = sample.chain.as_ref().and_then(|chain| chain.last());
    last == Some(&CONTEXT_USER_DEFERRED)
}

pub(super) struct Session<'a> {
    pub setup: &'a Setup,
    trace: &'a Trace,
    pub entries: Entries,
}

impl Session<'_> {
    fn judge(&self, judged: &mut Judged) {
        let askers = self.askers();
        let asked = |at: usize| askers.iter().any(|role| self.asks(role, at));
        self.reference(&asked, judged);
        for role in &askers {
            if !self.open(role.name, judged) {
                continue;
            }
            self.samples(role, judged);
        }
        self.unasked(judged);
        for receiver in self.receivers() {
            if self.open(receiver, judged) {
                self.answers(receiver, &asked, judged);
            }
        }
    }

    /// The open event of this name.
    fn opened(&self, name: &str) -> Option<usize> {
        let mut open = self.trace.session.iter();
        open.position(|it| spec_name(self.trace, it.spec) == name)
    }

    /// Whether the event is open and nothing of its ring was lost.
    fn open(&self, name: &str, judged: &mut Judged) -> bool {
        let open = self.trace.session.iter();
        let open = open.filter(|it| spec_name(self.trace, it.spec) == name);
        let rings: Vec<u32> = open.map(|it| it.ring).collect();
        if rings.is_empty() {
            return false;
        }
        let lost = self.trace.events.iter().any(|event| {
            let lost = matches!(
                event.kind,
                EventKind::Lost { lost: 1.., .. } | EventKind::LostSamples { lost: 1.. }
            );
            lost && rings.contains(&event.ring)
        });
        if lost {
            judged
                .undecided
                .push(format!("records of the ring of the {name} were lost"));
        }
        !lost
    }

    /// The reference gets one record 22 in each entry in which there is a request, and none in
    /// others.
    fn reference(&self, asked: &dyn Fn(usize) -> bool, judged: &mut Judged) {
        for (at, entry) in self.entries.list.iter().enumerate() {
            // M1 and X1 judge what a task that exits gets.
            if entry.is_exit() {
                continue;
            }
            let (asked, got) = (asked(at), entry.cookies.len());
            if got == usize::from(asked) {
                judged.held += got;
                self.stack(at, entry, judged);
                continue;
            }
            let what = match asked {
                true => "the reference does not get one record 22 for a request",
                false => "the reference gets a record 22 without a request",
            };
            let detail = format!("{got} in entry {at}, system call {}", entry.number);
            judged.failures.push(Failure::new(what.to_owned(), detail));
        }
    }

    /// The record 22 of the leaf's system call has the stack at that leaf, which is known by
    /// construction: the marker says which system call it is. ("This user callchain capture was
    /// deferred until shortly before returning to user space", include/uapi/linux/perf_event.h.)
    fn stack(&self, at: usize, entry: &Entry, judged: &mut Judged) {
        let own = entry.tid == self.entries.thread && entry.has_enter && entry.is_workload;
        let thread = self.trace.threads.first();
        let (Some(thread), true, false) = (thread, own, entry.cookies.is_empty()) else {
            return;
        };
        let known = std::iter::once(thread.stack.syscall_return);
        let known = known.chain(thread.stack.caller_addresses());
        if !known.eq(entry.frames.iter().copied()) {
            let what = "a record 22 of the workload's system call has another stack".to_owned();
            let detail = format!("{} frames in entry {at}", entry.frames.len());
            judged.failures.push(Failure::new(what, detail));
        }
    }

    /// No event without `defer_output` gets a record 22 (`perf_callchain_deferred_output`).
    fn unasked(&self, judged: &mut Judged) {
        let receivers = self.receivers();
        for name in [name::UNASKED, name::ENTER, name::EXIT, name::ASKER] {
            let asks_for_it = receivers.contains(&name);
            let got = self.of(name).filter(|it| it.deferred_chain().is_some());
            let got = got.count();
            if got > 0 && !asks_for_it {
                let what = "an event without defer_output gets record 22".to_owned();
                let detail = format!("{got} of the {name}");
                judged.failures.push(Failure::new(what, detail));
            }
        }
    }

    /// The samples of an asker.
    fn samples(&self, role: &Role, judged: &mut Judged) {
        let fires: Vec<usize> = self.stays(|at| self.fires(role, at));
        let samples = self.of(role.name);
        let samples = samples.filter(|it| matches!(it.kind, EventKind::Sample(_)));
        let samples: Vec<&Event> = samples.collect();
        let own = role.name == name::ASKER;
        let no_user = own && self.setup.is(Factor::ExcludeCallchainUser, "yes");
        // A marker without its cookie is A1's.
        if no_user || self.has_no_room(role) || samples.iter().any(|it| ends_with_marker(it)) {
            return self.without_cookies(role, &fires, &samples, judged);
        }
        let got = samples.iter().filter_map(|it| it.cookie()).collect();
        self.compare(role.name, "sample", &fires, got, judged);
    }

    /// The samples of an event whose chains have no cookies.
    fn without_cookies(
        &self,
        role: &Role,
        fires: &[usize],
        samples: &[&Event],
        judged: &mut Judged,
    ) {
        let ours = |tid: Option<u32>| tid.is_some_and(|tid| self.entries.knows(tid));
        let known = samples.iter().filter(|it| ours(it.tid)).count();
        let all_known = samples.iter().all(|it| it.tid.is_some());
        // The exit of the thread is left out of `fires`.
        let dying = (0..self.entries.list.len()).filter(|&at| {
            self.entries.list.get(at).is_some_and(|it| it.is_exit()) && self.fires(role, at)
        });
        let wanted = fires.len() + dying.count();
        let got = match all_known {
            true => known,
            false if role.probe => samples.len(),
            false => {
                judged
                    .undecided
                    .push("samples have neither a task nor a cookie".to_owned());
                return;
            }
        };
        if got == wanted {
            judged.held += got;
        } else {
            let what = format!("the {} does not get one sample for each hit", role.name);
            let detail = format!("{got} of {wanted}");
            judged.failures.push(Failure::new(what, detail));
        }
    }

    /// The records 22 of a receiver.
    fn answers(&self, receiver: &str, asked: &dyn Fn(usize) -> bool, judged: &mut Judged) {
        let wanted = self.stays(|at| {
            asked(at) && self.reaches(receiver, at) && self.is_on(receiver, at, Place::Return)
        });
        let answers = self.of(receiver).filter(|it| it.deferred_chain().is_some());
        let got: Vec<u64> = answers.filter_map(Event::cookie).collect();
        let own: Vec<u64> = self.own(&got);
        if own.is_empty() && !wanted.is_empty() && self.lacks_side_band(receiver) {
            judged.failures.push(Failure {
                what: "an event with defer_output whose other bits is_sb_event does not know gets \
                       no record 22"
                    .to_owned(),
                detail: format!("side-band={}", self.setup.level(Factor::SideBand)),
                receiver: self.opened(receiver),
            });
            return;
        }
        self.compare(receiver, "record 22", &wanted, got, judged);
    }

    /// The entries of which this is true, without that of the thread's exit: M1 and X1 judge it.
    fn stays(&self, of: impl Fn(usize) -> bool) -> Vec<usize> {
        let list = self.entries.list.iter().enumerate();
        let stays = list.filter(|(at, entry)| !entry.is_exit() && of(*at));
        stays.map(|(at, _)| at).collect()
    }

    /// Of these cookies those of the thread, except of its exit.
    fn own(&self, cookies: &[u64]) -> Vec<u64> {
        let stays = self.entries.list.iter().filter(|entry| !entry.is_exit());
        let known: Vec<u64> = stays.flat_map(|entry| entry.cookies.clone()).collect();
        let own = cookies.iter().filter(|cookie| known.contains(cookie));
        own.copied().collect()
    }

    fn compare(
        &self,
        event: &str,
        kind: &str,
        wanted: &[usize],
        got: Vec<u64>,
        judged: &mut Judged,
    ) {
        let cookies = wanted.iter().filter_map(|at| {
            let entry = self.entries.list.get(*at)?;
            entry.cookies.first().copied()
        });
        let mut wanted: Vec<u64> = cookies.collect();
        let mut got = self.own(&got);
        // Several tasks, or several rings without times: the invariants judge the order.
        if !self.setup.is(Factor::Workload, "getppid") {
            wanted.sort_unstable();
            got.sort_unstable();
        }
        if got == wanted {
            judged.held += got.len();
            return;
        }
        let count = |list: &[u64]| {
            let mut counts = BTreeMap::new();
            for cookie in list {
                *counts.entry(*cookie).or_insert(0_usize) += 1;
            }
            counts
        };
        let (wanted_of, got_of) = (count(&wanted), count(&got));
        let missing = wanted_of
            .keys()
            .filter(|it| !got_of.contains_key(it))
            .count();
        let extra = got_of
            .keys()
            .filter(|it| !wanted_of.contains_key(it))
            .count();
        let what = match (missing, extra) {
            (0, 0) => format!("the {event} gets a {kind} twice, or out of order"),
            (_, 0) => format!("the {event} does not get each {kind}"),
            (0, _) => format!("the {event} gets a {kind} too many"),
            _ => format!("the {event} gets another {kind} than it should"),
        };
        let (got, all) = (wanted.len() - missing, wanted.len());
        let detail = format!("{got} of {all}, {extra} others");
        judged.failures.push(Failure::new(what, detail));
    }

    /// The records that an event wrote.
    fn of(&self, name: &str) -> impl Iterator<Item = &Event> {
        let by = move |event: &&Event| {
            let open = event.event.and_then(|at| self.trace.session.get(at));
            open.is_some_and(|open| spec_name(self.trace, open.spec) == name)
        };
        self.trace.events.iter().filter(by)
    }
}
