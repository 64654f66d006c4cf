//! How many runs a verdict needs.
//!
//! A commit that fails once is bad. A commit that passes may be bad and lucky: if a bad kernel
//! fails a share `p` of its runs, it passes `n` runs with probability `(1 - p)^n`.

/// The share of runs in which the bad commit fails, estimated with Laplace's rule of succession:
/// never 1, however often it failed.
#[must_use]
pub fn failure_rate(failed: u32, runs: u32) -> f64 {
    (f64::from(failed) + 1.0) / (f64::from(runs) + 2.0)
}

/// How often a commit must pass to be reported good, such that the probability of reporting a bad
/// commit good is at most `1 - confidence`. At least once, at most a thousand times.
#[must_use]
pub fn runs_needed(rate: f64, confidence: f64) -> u32 {
    (1..1000)
        .find(|&runs| mistake(rate, runs) <= 1.0 - confidence)
        .unwrap_or(1000)
}

/// The probability that a bad commit passes this many runs.
#[must_use]
pub fn mistake(rate: f64, runs: u32) -> f64 {
    (1.0 - rate).powf(f64::from(runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rarer_failures_need_more_runs() {
        let runs = |failed, of| runs_needed(failure_rate(failed, of), 0.99);
        // 5 of 5: rate 6/7, (1/7)^2 = 0.02, (1/7)^3 = 0.003.
        assert_eq!(runs(5, 5), 3);
        // 1 of 5: rate 2/7, (5/7)^13 = 0.013, (5/7)^14 = 0.009.
        assert_eq!(runs(1, 5), 14);
        assert_eq!(runs_needed(0.9, 0.5), 1);
        assert_eq!(runs_needed(0.000_001, 0.99), 1000);
    }
}
