//! The rule: a figure is worse, or better, if a rank test says that its rounds are not those of before, and the medians
//! are far enough apart to matter.

use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

use crate::bench::rows::Better;
use crate::bench::series::Spread;

/// Chance below which rounds that differ so much are not taken for the same. Both ways together: that a figure which has not
/// changed is called worse has half of it.
pub const CHANCE: f64 = 0.02;
/// Share of the median below which a difference does not matter.
pub const LEAST: f64 = 0.1;

/// What became of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is worse.
    Worse,
    /// It is better.
    Better,
    /// Neither can be said.
    WithinNoise,
}

/// A change, and by which numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// What became of it.
    pub change: Change,
    /// Today's median as a share of the earlier one.
    pub ratio: f64,
    /// How likely rounds differ so much that are of the same figure.
    pub chance: f64,
}

/// Compares the rounds of a figure; nothing where they are too few to tell any difference from chance.
pub(super) fn compare(earlier: &[f64], today: &[f64], better: Better) -> Option<Compared> {
    if least_chance(earlier.len(), today.len())? >= CHANCE {
        return None;
    }
    let chance = chance(earlier, today)?;
    let ratio = Spread::of(today)?.median / Spread::of(earlier)?.median;
    let is_more = ratio > 1.0 + LEAST;
    let is_less = ratio < 1.0 / (1.0 + LEAST);
    let change = match (is_more, is_less, better) {
        _ if chance >= CHANCE => Change::WithinNoise,
        (true, _, Better::Less) | (_, true, Better::More) => Change::Worse,
        (true, _, Better::More) | (_, true, Better::Less) => Change::Better,
        (false, false, _) => Change::WithinNoise,
    };
    Some(Compared {
        change,
        ratio,
        chance,
    })
}

/// The two-sided chance of the test of Mann and Whitney (Annals of Mathematical Statistics 18, 1947), by the normal distribution, with
/// the correction for ties and for continuity. The exact method of statrs 0.19.1 says 1 for two groups of one size.
fn chance(earlier: &[f64], today: &[f64]) -> Option<f64> {
    let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
    let tested = mannwhitneyu(earlier, today, method, Alternative::TwoSided);
    tested.ok().map(|(_, chance)| chance)
}

/// The chance of so many rounds that lie all on one side of the others.
fn least_chance(earlier: usize, today: usize) -> Option<f64> {
    let numbers = |from: usize, to: usize| -> Vec<usize> { (from..to).collect() };
    let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
    let (one, other) = (numbers(0, earlier), numbers(earlier, earlier + today));
    let tested = mannwhitneyu(&one, &other, method, Alternative::TwoSided);
    tested.ok().map(|(_, chance)| chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: [f64; 5] = [10.0, 10.4, 9.8, 10.1, 10.9];

    fn times(factor: f64) -> Vec<f64> {
        BEFORE.iter().map(|it| it * factor).collect()
    }

    fn change(earlier: &[f64], today: &[f64], better: Better) -> Option<Change> {
        compare(earlier, today, better).map(|it| it.change)
    }

    #[test]
    fn only_what_is_far_apart_and_apart_in_its_rounds_has_changed() {
        let of = |factor| change(&BEFORE, &times(factor), Better::Less);
        assert_eq!(of(1.0), Some(Change::WithinNoise));
        assert_eq!(of(1.5), Some(Change::Worse));
        assert_eq!(of(0.5), Some(Change::Better));
        // All rounds are above the earlier ones, but by little.
        let little = [11.0, 11.02, 11.05, 11.01, 11.03];
        assert_eq!(
            change(&BEFORE, &little, Better::Less),
            Some(Change::WithinNoise)
        );
        // The median is far off, and half of the rounds are not.
        let noisy = [9.0, 10.0, 15.0, 16.0, 17.0];
        assert_eq!(
            change(&BEFORE, &noisy, Better::Less),
            Some(Change::WithinNoise)
        );
    }

    #[test]
    fn more_of_a_rate_is_better() {
        let of = |factor| change(&BEFORE, &times(factor), Better::More);
        assert_eq!(of(1.5), Some(Change::Better));
        assert_eq!(of(0.5), Some(Change::Worse));
    }

    #[test]
    fn few_rounds_say_nothing_however_far_apart() {
        for (earlier, today) in [(1, 1), (3, 3), (4, 4), (1, 1000)] {
            let found = change(&vec![1.0; earlier], &vec![9.0; today], Better::Less);
            assert_eq!(found, None, "{earlier} and {today}");
        }
        let found = |earlier, today| change(&vec![1.0; earlier], &vec![9.0; today], Better::Less);
        assert_eq!(found(5, 5), Some(Change::Worse));
        assert_eq!(found(3, 8), Some(Change::Worse));
        assert_eq!(change(&[], &BEFORE, Better::Less), None);
    }

    /// R: wilcox.test(x, y, exact = FALSE)$p.value.
    #[test]
    fn the_chance_is_that_of_mann_and_whitney() {
        let apart = chance(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]).unwrap();
        assert!((apart - 0.012_185_78).abs() < 1e-6, "{apart}");
        let same = chance(&[1.0; 5], &[1.0; 5]).unwrap();
        assert!((same - 1.0).abs() < 1e-9, "{same}");
    }

    /// One outlier in many rounds hides nothing.
    #[test]
    fn many_rounds_tell_more_than_spreads_that_do_not_overlap() {
        let mut earlier = vec![10.0; 12];
        earlier.push(40.0);
        let today = vec![20.0; 12];
        assert_eq!(change(&earlier, &today, Better::Less), Some(Change::Worse));
    }
}
