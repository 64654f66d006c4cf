//! What unwinding in user mode wrote: the requests of the BPF program, and the results of the handlers.

mod decode;
mod reader;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unwindlab_abi::user_mode::{Asked, UnwinderKind};

pub use decode::decode;

/// The words as they stood in guest memory when the trial was over, undecoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserModeLog {
    /// The handler's first instruction.
    pub handler: u64,
    /// How the handler unwinds.
    #[serde(default)]
    pub unwinder: UnwinderKind,
    /// The BPF program's counters.
    pub counters: Vec<u64>,
    /// The BPF ring buffer up to the producer's position.
    pub ring: Vec<u8>,
    /// Slots for results that were taken, with those that there were none left for.
    pub taken: u64,
    /// The results, each up to its last frame.
    pub results: Vec<Vec<u64>>,
    /// Why the rest could not be read, if so.
    pub corrupt: Option<String>,
}

/// A sample that the BPF program saw, in the order of the ring buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonceRequest {
    /// The nonce.
    pub nonce: u64,
    /// Thread group id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// What the program did.
    pub asked: Asked,
    /// What `bpf_send_signal_task` returned.
    pub answer: i64,
    /// The CPU.
    pub cpu: u32,
    /// The kernel stack, innermost first; empty in user mode.
    pub kernel: Vec<u64>,
}

/// A stack that a handler wrote, in the order in which the handlers took their slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonceResult {
    /// The signal's value.
    pub nonce: u64,
    /// Thread id.
    pub tid: u32,
    /// The interrupted instruction.
    pub ip: u64,
    /// The stack pointer there.
    pub sp: u64,
    /// The frames, innermost first: words of [`unwindlab_abi::user_stack::UserFrame`].
    pub frames: Vec<u64>,
    /// Why there are no more, by the unwinder's number.
    pub stop: u64,
    /// `si_code`.
    pub code: i32,
    /// `si_overrun` of a timer's signal, `si_perf_flags` of `sigtrap`'s.
    pub more: u32,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserModeTrace {
    /// The handler's first instruction.
    pub handler: u64,
    /// How the handler unwinds.
    pub unwinder: UnwinderKind,
    /// The requests.
    pub requests: Vec<NonceRequest>,
    /// The results.
    pub results: Vec<NonceResult>,
    /// Samples of threads that have opted in, as the program counted them.
    pub samples: u64,
    /// Signals that the kernel refused.
    pub refused: u64,
    /// Samples for which the ring buffer had no room.
    pub full: u64,
    /// Results for which there was no slot.
    pub no_slot: u64,
    /// Results that were begun and not finished.
    pub unfinished: u64,
}

impl UserModeTrace {
    /// Nonces that a signal was sent for, each with its first request.
    pub fn nonces(&self) -> impl Iterator<Item = (usize, &NonceRequest)> {
        let requests = self.requests.iter().enumerate();
        requests.filter(|(_, it)| it.asked == Asked::Sent)
    }

    /// The results of a nonce.
    pub fn results_of(&self, nonce: u64) -> impl Iterator<Item = &NonceResult> {
        self.results.iter().filter(move |it| it.nonce == nonce)
    }
}
