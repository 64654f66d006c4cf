//! N: stacks that a program finds itself, in the handler of a signal that asked for them.

pub(super) mod n6_same_walk;
pub(super) mod n7_asked_once;
pub(super) mod n8_truth;
pub(super) mod semantic;

pub use n8_truth::OwnStacks;

use unwindlab_abi::Observation;
use unwindlab_abi::user_stack::UserStack;

use crate::trace::Trace;

/// The stacks, in the order in which each thread found its own.
fn stacks(trace: &Trace) -> impl Iterator<Item = &UserStack> {
    let pieces = trace.observations.iter().filter_map(|it| match it {
        Observation::UserStacks(piece) => Some(piece),
        _ => None,
    });
    pieces.flatten()
}

#[cfg(test)]
mod testkit {
    use unwindlab_abi::Observation;
    use unwindlab_abi::user_stack::{UserFrame, UserStack};

    use crate::invariant::testkit::{Kit, user};
    use crate::trace::Trace;

    pub const IP: u64 = 0x1010;
    pub const C: u64 = 3 << 32 | 1;
    pub const CHAIN: [u64; 4] = [IP, 0x2000, 0x2000, 0x3000];

    /// A stack of thread 0 with this chain, however it was found.
    pub fn stack(cookie: u64, chain: &[u64]) -> UserStack {
        UserStack {
            thread: 0,
            cookie,
            lost: 0,
            by_frame_pointers: chain.to_vec(),
            by_dwarf: chain.to_vec(),
            semantic: chain.iter().copied().map(UserFrame::Native).collect(),
        }
    }

    /// An NMI into thread 0 with its D, and what the thread found itself.
    pub fn trace(stacks: Vec<UserStack>) -> Trace {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, user(IP));
        kit.deferred(0, 1001, C, &CHAIN);
        let mut trace = kit.trace();
        trace.observations = vec![Observation::UserStacks(stacks)];
        trace
    }
}
