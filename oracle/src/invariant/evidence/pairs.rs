//! How many pairs of requests and answers are compared.

use crate::trace::Trace;

/// Pairs for each record of a trace, and at least.
const A_RECORD: usize = 64;
const LEAST: usize = 1_000_000;

/// How many pairs are left to compare. A kernel that has one cookie for all of its entries, or never leaves one, has as many as
/// the square of its records: 20,000 of each would take minutes.
#[derive(Debug)]
pub(in crate::invariant) struct Pairs(usize);

impl Pairs {
    /// Why what is left is not decided.
    pub const TOO_MANY: &'static str =
        "its cookie has too many requests and answers to compare each with each";

    /// Those of a trace.
    pub fn of(trace: &Trace) -> Self {
        Self(trace.events.len().saturating_mul(A_RECORD).max(LEAST))
    }

    /// Takes one; false where none is left.
    pub const fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        if let Some(left) = left {
            self.0 = left;
        }
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check};

    const C: u64 = 3 << 32 | 1;
    /// More than a million pairs.
    const MANY: u32 = 1_100;

    #[test]
    fn a_trace_has_so_many_pairs() {
        let mut pairs = Pairs::of(&Kit::new(1).trace());
        assert_eq!((0..2 * LEAST).filter(|_| pairs.take()).count(), LEAST);
    }

    /// An entry that asks and is answered again and again.
    fn one_entry(times: u32) -> Kit {
        let mut kit = Kit::new(1);
        kit.witness();
        for _ in 0..times {
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x40]);
        }
        kit
    }

    #[test]
    fn what_is_not_compared_is_not_decided() {
        for times in [10, MANY] {
            let trace = one_entry(times).trace();
            let [completeness, soundness, later] =
                ["M1", "M3", "M5"].map(|id| match check(id, &trace) {
                    Check::Holds { undecided, .. } => undecided,
                    other => panic!("{id}, {times}: {other:?}"),
                });
            // The next answer is each request's own.
            assert_eq!(completeness, 0, "{times}");
            // Whether the cookie of an answer was asked for in another entry, too.
            assert_eq!(soundness > 0, times == MANY, "{times}: {soundness}");
            // Whether a request behind it is of its entry.
            assert_eq!(later > 0, times == MANY, "{times}: {later}");
        }
    }
}
