//! Traces of instances of tracefs.

use crate::trace::Trace;
use crate::trace::tracefs::{TracefsClient, TracefsEvent, TracefsKind, TracefsTrace};

/// The trace, with two instances that ask and are answered right behind perf.
pub fn mirrored(mut trace: Trace) -> Trace {
    let client = |name: &str| TracefsClient {
        name: name.to_owned(),
        ..TracefsClient::default()
    };
    let mut tracefs = TracefsTrace {
        clients: vec![client("a"), client("b")],
        events: Vec::new(),
    };
    for event in &trace.events {
        let kind = match (event.deferred_sample(), event.deferred_chain()) {
            (Some((_, cookie)), _) => TracefsKind::Request {
                cookie,
                asker: None,
            },
            (_, Some(chain)) => TracefsKind::Stack {
                cookie: chain.cookie,
                nr: chain.frames().len() as u64,
                frames: chain.frames(),
            },
            _ => continue,
        };
        // Record 22 follows its sample within its 10 ns.
        for client in 0..2 {
            tracefs.events.push(TracefsEvent {
                client,
                cpu: event.cpu,
                position: event.position,
                buffer: usize::MAX,
                start: 0,
                size: 0,
                time: event.time.unwrap() + 1 + client as u64,
                tid: event.tid.unwrap(),
                kind: kind.clone(),
            });
        }
    }
    trace.tracefs = Some(tracefs);
    trace
}
