//! X1 and X2: what an exiting task's requests become.

use std::collections::BTreeMap;

use super::super::verdict::Verdict;
use super::{Lab, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// X1: what was asked for in an entry that ends in exit is answered, and with a stack: the memory
/// is still there.
pub(in super::super) fn exit_answered(lab: &Lab<'_>, verdict: &mut Verdict) {
    for stay in &lab.stays {
        let Some(exit) = stay.exit else { continue };
        for (event, client, cookie) in stay.called().filter(|(e, ..)| e.flags.exiting) {
            match event.kind {
                LabKind::Callback { nr: 1.., .. } => verdict.holds(),
                _ => {
                    let message = format!(
                        "client {client} got no frame of {}, which exits (cookie {cookie:#x})",
                        task(event)
                    );
                    verdict.violated_in_log(message, [exit.slot, event.slot], None);
                }
            }
        }
        let mut open: BTreeMap<LabClient, &LabEvent> = BTreeMap::new();
        for (request, client, _) in stay.accepted().filter(|(r, ..)| !r.flags.cancelled) {
            open.entry(client).or_insert(request);
        }
        open.retain(|client, _| !stay.called().any(|(_, called, _)| called == *client));
        for (client, request) in open {
            if lab.cancelled_in(client, stay) || !lab.is_over(stay) {
                continue;
            }
            let message = format!(
                "client {client} asked for {}, which exited without an answer",
                task(request)
            );
            verdict.violated_in_log(message, [request.slot, exit.slot], None);
        }
    }
}

/// X2: a request of a task that is marked as exiting is refused, and no cookie is given.
pub(in super::super) fn exiting_refused(lab: &Lab<'_>, verdict: &mut Verdict) {
    for event in lab.log.events.iter().filter(|event| event.flags.exiting) {
        let LabKind::Request { ret, cookie, .. } = event.kind else {
            continue;
        };
        if ret < 0 && cookie == 0 {
            verdict.holds();
            continue;
        }
        let message = format!(
            "{} is exiting, and a request for it returned {ret}, cookie {cookie:#x} ({})",
            task(event),
            event.context.name()
        );
        verdict.violated_in_log(message, [event.slot], None);
    }
}
