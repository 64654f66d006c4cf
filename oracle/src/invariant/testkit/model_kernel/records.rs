//! What a kernel may do wrong in every record that it writes.

use super::*;
use crate::trace::EventKind;
use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED, Sample};

/// The records as a kernel with this bug writes them.
pub(super) fn written(mut trace: Trace, bug: Option<Bug>) -> Trace {
    let Some(bug) = bug else { return trace };
    let elsewhere: Vec<Option<usize>> = trace
        .session
        .iter()
        .map(|open| {
            let mut others = trace.session.iter();
            others.position(|it| it.spec == open.spec && it.cpu != open.cpu)
        })
        .collect();
    for event in &mut trace.events {
        let cpu = event.cpu;
        match (bug, &mut event.kind) {
            (Bug::RecordOfOtherEvent, _) => event.event = elsewhere[event.event.unwrap()],
            (Bug::ShortRecord, EventKind::CallchainDeferred(_)) => event.size -= 8,
            (Bug::AnswerOfOtherTask, EventKind::CallchainDeferred(_)) => {
                event.tid = event.tid.map(|tid| tid + 500);
            }
            (Bug::WrongFrameZero, EventKind::CallchainDeferred(chain)) => {
                chain.ips.iter_mut().take(1).for_each(|ip| *ip += 2);
            }
            (Bug::ChainInBoth, EventKind::Sample(sample)) => insert(sample, &[CONTEXT_USER, 0x10]),
            (Bug::MarkerTwice, EventKind::Sample(sample)) => {
                insert(sample, &[CONTEXT_USER_DEFERRED]);
            }
            (Bug::ContextTwice, EventKind::Sample(sample)) => {
                if let Some(chain) = &mut sample.chain {
                    chain.insert(0, CONTEXT_KERNEL);
                }
            }
            (Bug::CountGoesDown, EventKind::Sample(sample)) => {
                if sample.cookie().is_some()
                    && let Some(cookie) = sample.chain.as_mut().and_then(|chain| chain.last_mut())
                {
                    *cookie = mirrored(*cookie);
                }
            }
            (Bug::CountGoesDown, EventKind::CallchainDeferred(chain)) => {
                chain.cookie = mirrored(chain.cookie);
            }
            _ => {}
        }
        debug_assert_eq!(cpu, event.cpu, "the record stays where it is");
    }
    trace
}

/// Puts something before the marker.
fn insert(sample: &mut Sample, what: &[u64]) {
    let Some(chain) = &mut sample.chain else {
        return;
    };
    if let Some(at) = chain.iter().position(|&ip| ip == CONTEXT_USER_DEFERRED) {
        chain.splice(at..at, what.iter().copied());
    }
}

/// A cookie whose count falls where this one's rises.
fn mirrored(cookie: u64) -> u64 {
    (0x10_0001 - (cookie >> 32)) << 32 | cookie & 0xffff_ffff | 1 << 32
}
