//! What the signals of results carried.

use std::collections::BTreeSet;
use std::fmt;

use crate::trace::{NonceResult, Trace};

/// `si_code` of include/uapi/asm-generic/siginfo.h.
const CODES: [(i32, &str); 4] = [
    (0x80, "SI_KERNEL"),
    (-1, "SI_QUEUE"),
    (-2, "SI_TIMER"),
    (6, "TRAP_PERF"),
];
const SI_TIMER: i32 = -2;
const TRAP_PERF: i32 = 6;

/// What the signals of all results carried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signals {
    /// Results.
    pub results: usize,
    /// Different values.
    pub values: usize,
    /// Their `si_code`.
    pub codes: BTreeSet<i32>,
    /// Signals of timers that were not sent because one was pending.
    pub overruns: u64,
    /// Signals of `sigtrap` that say that they are late (`TRAP_PERF_FLAG_ASYNC`).
    pub late: usize,
    /// Results of threads that are none of the workload's.
    pub strangers: usize,
    /// Results whose callers are those of their thread as built, from an instruction of its leaf.
    pub as_built: usize,
    /// There is a BPF program, which knows nonces.
    pub has_nonces: bool,
}

impl Signals {
    /// Of a trace; `None` if no handler wrote a result.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        let user_mode = trace.user_mode.as_ref()?;
        let results = || user_mode.results.iter();
        let own = |result: &NonceResult| trace.threads.iter().find(|it| it.tid == result.tid);
        let as_built = |result: &&NonceResult| {
            let (Some(thread), Some((first, callers))) = (own(result), result.frames.split_first())
            else {
                return false;
            };
            let leaf = thread.stack.leaf_start..thread.stack.leaf_end;
            leaf.contains(first) && thread.stack.caller_addresses().eq(callers.iter().copied())
        };
        let of_code = |code| results().filter(move |it| it.code == code);
        let found = Self {
            results: results().count(),
            values: results().map(|it| it.nonce).collect::<BTreeSet<_>>().len(),
            codes: results().map(|it| it.code).collect(),
            overruns: of_code(SI_TIMER).map(|it| u64::from(it.more)).sum(),
            late: of_code(TRAP_PERF).filter(|it| it.more & 1 != 0).count(),
            strangers: results().filter(|it| own(it).is_none()).count(),
            as_built: results().filter(as_built).count(),
            has_nonces: !user_mode.requests.is_empty(),
        };
        (found.results > 0).then_some(found)
    }
}

impl fmt::Display for Signals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |code: &i32| match CODES.iter().find(|it| it.0 == *code) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("{code:#x}"),
        };
        let codes: Vec<String> = self.codes.iter().map(name).collect();
        write!(
            out,
            "{} signals without a nonce ({}), values: {}, overruns: {}, flagged late: {}, of other threads: {}, stacks as built: {}",
            self.results,
            codes.join(", "),
            self.values,
            self.overruns,
            self.late,
            self.strangers,
            self.as_built
        )
    }
}
