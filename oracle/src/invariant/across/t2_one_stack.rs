//! T2: one cookie has one stack, whoever wrote it.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, cut_without_need, difference};
use crate::trace::model::CONTEXT_MAX;
use crate::trace::tracefs::TracefsKind;
use crate::trace::{EventKind, LabKind, Trace};

/// A stack that a client wrote.
struct Written<'t> {
    client: String,
    nr: u64,
    frames: &'t [u64],
}

/// T2. The stacks that two clients wrote under one cookie have the same number of frames, and the same frames as
/// far as both wrote them. The deferred unwinder hands one trace to all (`process_unwind_deferred`,
/// kernel/unwind/deferred.c, 7.3). An instance writes all frames that an event has room for. Evidence is a cookie with the
/// stacks of two clients, of a frame or more.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    if trace.tracefs.is_none() {
        return;
    }
    for (cookie, written) in stacks(trace, tally) {
        let mut written = written.into_iter();
        let Some(first) = written.next() else {
            continue;
        };
        for other in written.filter(|it| it.client != first.client) {
            let both = first.frames.len().min(other.frames.len());
            let [a, b] = [&first, &other].map(|it| it.frames.get(..both).unwrap_or_default());
            if a == b && first.nr == other.nr {
                match both {
                    0 => tally.undecided("no frame was written"),
                    _ => tally.holds(),
                }
                continue;
            }
            let what = match first.nr == other.nr {
                true => difference(b, a),
                false => format!("{} and {} frames", first.nr, other.nr),
            };
            tally.violated_elsewhere(format!(
                "the stacks of cookie {cookie:#x} differ, of {} and {}: {what}",
                first.client, other.client
            ));
        }
    }
}

/// The stacks by cookie, perf's first.
fn stacks<'t>(trace: &'t Trace, tally: &mut Tally) -> BTreeMap<u64, Vec<Written<'t>>> {
    let mut stacks: BTreeMap<u64, Vec<Written<'t>>> = BTreeMap::new();
    for event in &trace.events {
        let EventKind::CallchainDeferred(chain) = &event.kind else {
            continue;
        };
        // The kernel's marker comes first, and frames are no markers.
        let marker = chain.ips.first().is_some_and(|&ip| ip >= CONTEXT_MAX);
        let frames = chain.ips.get(usize::from(marker)..).unwrap_or_default();
        stacks.entry(chain.cookie).or_default().push(Written {
            client: "perf".to_owned(),
            nr: frames.len() as u64,
            frames,
        });
    }
    let tracefs = trace.tracefs.iter();
    for (tracefs, event) in tracefs.flat_map(|it| it.events.iter().map(move |event| (it, event))) {
        let TracefsKind::Stack { cookie, nr, frames } = &event.kind else {
            continue;
        };
        let name = tracefs.clients.get(event.client).map_or("?", |it| &it.name);
        if let Some(what) = cut_without_need(*nr, frames) {
            tally.violated_elsewhere(format!(
                "the stack of cookie {cookie:#x} of instance {name} has {what}"
            ));
            continue;
        }
        stacks.entry(*cookie).or_default().push(Written {
            client: format!("instance {name}"),
            nr: *nr,
            frames,
        });
    }
    let lab = trace.lab.iter();
    for (lab, event) in lab.flat_map(|it| it.events.iter().map(move |event| (it, event))) {
        if let LabKind::Callback { cookie, nr, .. } = event.kind
            && let (Some(frames), Some(client)) = (lab.frames(event), event.client)
        {
            stacks.entry(cookie).or_default().push(Written {
                client: format!("lab client {client}"),
                nr,
                frames,
            });
        }
    }
    stacks.remove(&0);
    stacks
}
