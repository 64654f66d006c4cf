//! The kernel's unwinder and the signal with a nonce, side by side for the same samples.

use std::collections::BTreeMap;

use unwindlab_abi::user_mode::Asked;

use super::pairs::{Pair, pairs};
use super::truth::{truth, wrong};
use crate::invariant::evidence::Evidence;
use crate::trace::UserModeTrace;

/// What came of the samples of threads that unwind themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Designs {
    /// Samples of threads that had opted in.
    pub samples: usize,
    /// By the kernel's deferred unwinding.
    pub kernel: Answers,
    /// By the signals.
    pub signals: Answers,
}

/// What one design made of them. Samples of one entry share a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    /// Requests: cookies or nonces, and samples that were refused one.
    pub asked: usize,
    /// Answers that are the stack.
    pub exact: usize,
    /// Answers that are another one.
    pub wrong: usize,
    /// Answers where the stack is not known.
    pub not_known: usize,
    /// Requests without an answer, and refused ones.
    pub lost: usize,
    /// Answers to requests that have one already.
    pub twice: usize,
    /// Requests behind which the thread ran other code in user mode before the answer.
    pub late: usize,
    /// Answers of which it is not known whether they are late.
    pub perhaps_late: usize,
}

impl Designs {
    /// Of a trace; `None` if its requests and samples are not in pairs.
    #[must_use]
    pub fn of(evidence: &Evidence<'_>) -> Option<Self> {
        let user_mode = evidence.trace().user_mode.as_ref()?;
        let mut all = Self::default();
        for pairs in pairs(evidence, user_mode) {
            let opted_in = |it: &Pair<'_>| it.request.asked != Asked::NotOptedIn;
            let pairs: Vec<Pair<'_>> = pairs?.into_iter().filter(opted_in).collect();
            all.samples += pairs.len();
            all.kernel.of_kernel(evidence, &pairs);
            for pair in &pairs {
                all.signals.of_signal(evidence, user_mode, pair);
            }
        }
        // Each without a record.
        let full = usize::try_from(user_mode.full).unwrap_or(usize::MAX);
        all.signals.asked = all.signals.asked.saturating_add(full);
        all.signals.lost = all.signals.lost.saturating_add(full);
        Some(all)
    }
}

impl Answers {
    fn of_kernel(&mut self, evidence: &Evidence<'_>, pairs: &[Pair<'_>]) {
        let facts = evidence.facts();
        let mut first: BTreeMap<u64, &Pair<'_>> = BTreeMap::new();
        for pair in pairs {
            match pair.event.deferred_sample() {
                Some((_, cookie)) if cookie != 0 => {
                    first.entry(cookie).or_insert(pair);
                }
                _ => {
                    self.asked += 1;
                    self.lost += 1;
                }
            }
        }
        for (cookie, pair) in first {
            self.asked += 1;
            let exchange = facts.exchanges.get(&cookie);
            let answers = exchange.map_or(&[][..], |it| it.answers.as_slice());
            let Some(answer) = answers.first() else {
                self.lost += 1;
                continue;
            };
            self.twice += answers.len() - 1;
            // Of the handler, whose own stack is not known.
            let of_handler = pair.request.asked == Asked::Again;
            let truth = truth(evidence, pair).filter(|_| !of_handler);
            self.judge(truth.map(|truth| answer.chain.ips == truth));
            let returns = [pair.event, answer.event].map(|it| facts.returns.before(it));
            let [Some(asked), Some(answered)] = returns else {
                self.perhaps_late += 1;
                continue;
            };
            self.late += usize::from(answered > asked);
        }
    }

    fn of_signal(&mut self, evidence: &Evidence<'_>, user_mode: &UserModeTrace, pair: &Pair<'_>) {
        if pair.request.asked == Asked::Again {
            return;
        }
        self.asked += 1;
        let mut results = user_mode.results_of(pair.request.nonce);
        let Some(result) = results.next() else {
            self.lost += 1;
            return;
        };
        self.twice += results.count();
        let truth = truth(evidence, pair);
        self.judge(truth.map(|truth| wrong(evidence.trace(), result, &truth).is_none()));
        match evidence.facts().returns.next(pair.event) {
            Some(next) => self.late += usize::from(next.rip != user_mode.handler),
            None => self.perhaps_late += 1,
        }
    }

    const fn judge(&mut self, exact: Option<bool>) {
        match exact {
            Some(true) => self.exact += 1,
            Some(false) => self.wrong += 1,
            None => self.not_known += 1,
        }
    }
}
