//! Numbers of several rounds: median and spread, and the ratio of two series.

use std::error::Error;

use serde::{Deserialize, Serialize};

/// One number a round, or why there is none: a measurement that failed once is not tried again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Series {
    /// In the order of the rounds.
    pub values: Vec<f64>,
    /// Why it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The middle of some numbers, and the least and the greatest of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one; the mean of the two in the middle where their number is even.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Series {
    /// One that cannot be measured, for this reason.
    #[must_use]
    pub fn impossible(why: impl ToString) -> Self {
        Self {
            values: Vec::new(),
            failed: Some(why.to_string()),
        }
    }

    /// Measures once more, unless that failed before.
    pub fn take<E: Error>(&mut self, measure: impl FnOnce() -> Result<f64, E>) {
        if self.failed.is_some() {
            return;
        }
        match measure() {
            Ok(value) => self.add(value),
            Err(error) => self.fail(&error),
        }
    }

    /// Whether it can have been measured: it is above 0.
    #[must_use]
    pub fn is_number(value: f64) -> bool {
        value.is_finite() && value > 0.0
    }

    /// Adds a number; one that is not above 0 is no measurement.
    pub fn add(&mut self, value: f64) {
        match Self::is_number(value) {
            true => self.values.push(value),
            false => self.failed = Some(format!("{value} is no measurement")),
        }
    }

    /// Notes why it could not be measured; the first reason stays.
    pub fn fail(&mut self, why: &dyn Error) {
        self.failed.get_or_insert_with(|| why.to_string());
    }

    /// Its spread, if every round could be measured.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        match self.failed {
            Some(_) => None,
            None => Spread::of(&self.values),
        }
    }

    /// The ratios of each round's two numbers. They were measured one right after the other, so that what slows both down
    /// cancels out.
    #[must_use]
    pub fn ratios(&self, other: &Self) -> Option<Vec<f64>> {
        self.spread()?;
        other.spread()?;
        let pairs = self.values.iter().zip(&other.values);
        Some(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }

    /// The spread of these.
    #[must_use]
    pub fn ratio_to(&self, other: &Self) -> Option<Spread> {
        Spread::of(&self.ratios(other)?)
    }
}

impl Spread {
    /// Of these numbers, if there are any.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Self {
            median: f64::midpoint(lower, upper),
            min,
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn series(values: &[f64]) -> Series {
        Series {
            values: values.to_vec(),
            failed: None,
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = |values: &[f64]| Spread::of(values).map(|it| (it.min, it.median, it.max));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 8.0]), Some((1.0, 3.0, 8.0)));
        assert_eq!(spread(&[4.0, 2.0]), Some((2.0, 3.0, 4.0)));
    }

    #[test]
    fn ratios_are_of_the_two_numbers_of_a_round() {
        // The machine was ten times as slow in the second round, for both.
        let ratio = series(&[1.0, 10.0])
            .ratio_to(&series(&[2.0, 20.0]))
            .unwrap();
        assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
    }

    #[test]
    fn what_failed_once_is_neither_a_number_nor_tried_again() {
        let mut broken = series(&[1.0]);
        broken.take(|| Err(io::Error::other("gone")));
        broken.take(|| -> Result<f64, io::Error> { panic!("it was tried again") });
        assert_eq!(
            (broken.spread(), broken.failed.as_deref()),
            (None, Some("gone"))
        );
        assert_eq!(series(&[1.0]).ratio_to(&broken), None);
        for no_number in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut empty = Series::default();
            empty.take(|| Ok::<_, io::Error>(no_number));
            assert_eq!(empty.spread(), None);
        }
    }
}
