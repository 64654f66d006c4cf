//! Whether a sample was made by what a finding's window calls: the bottom of its kernel chain says so.

use unwindlab_abi::plan::EventSource;

use super::Resolver;
use super::places::Places;
use crate::invariant::evidence::{Code, spec};
use crate::trace::{Event, Trace};

/// Whether the kernel made a sample while it executed a call of the window, in the context of the
/// task: not in an interrupt, exception or NMI that came there.
///
/// The chain is a list of addresses to return to, innermost first. Those in functions with a window
/// must return from calls of it, all of them: the window of a function that the first calls lies in
/// that function. The address that the chain begins with is that of the probe; at the return of a
/// function it is where that function returns to.
pub(super) fn is_made_behind<K: Resolver + ?Sized>(
    trace: &Trace,
    event: &Event,
    kernel: &Places<'_, K>,
) -> bool {
    let source = spec(trace, event).map(|spec| &spec.source);
    let Some(returned) = source.and_then(probes_a_call) else {
        return false;
    };
    let presence = kernel.presence();
    let mut met = false;
    for (at, ip) in event.kernel_chain().iter().enumerate() {
        let Some(function) = kernel.kernel.function(*ip) else {
            continue;
        };
        if !met && Code::is_entry(&function) {
            return false;
        }
        let Some(window) = presence.window_in(&function) else {
            continue;
        };
        let called = at > 0 || returned;
        if !called || !window.returns.contains(ip) {
            return false;
        }
        met = true;
    }
    met
}

/// Whether a source asks where ftrace or a tracepoint calls it, in the context of its caller, and
/// if so, whether that is at the return of a function. Where it asks by an exception or by an NMI, the
/// kernel sends itself an interrupt.
fn probes_a_call(source: &EventSource) -> Option<bool> {
    match source {
        EventSource::Kprobe {
            at_return,
            offset: 0,
            ..
        }
        | EventSource::Fprobe { at_return, .. } => Some(*at_return),
        EventSource::Tracepoint { .. } => Some(false),
        _ => None,
    }
}
