//! Which commit broke it: the search, apart from how a commit is tested.
//!
//! - [`search()`]: halving, with commits that cannot be tested left out;
//! - [`symptom`]: what is searched for, since a kernel may be wrong in other ways too;
//! - [`confidence`]: how often a commit must pass to be called good;
//! - [`log`]: what is known already, so that a search can go on where it was stopped.

pub mod confidence;
pub mod log;
pub mod symptom;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What is known of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "reason")]
pub enum Verdict {
    /// It does not show the symptom.
    Good,
    /// It does.
    Bad,
    /// It cannot be told, for this reason.
    Skip(String),
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The first bad commit.
    First(String),
    /// The first bad commit is one of these: the others could not be tested.
    OneOf(Vec<String>),
}

/// Searches the first bad commit between a good and a bad one, both known to be that.
///
/// `suspects` gives the commits that can be it, `bad` among them, the best to be tested next first.
///
/// # Errors
/// Those of the two functions.
pub fn search<E>(
    good: &str,
    bad: &str,
    mut suspects: impl FnMut(&str, &[String]) -> Result<Vec<String>, E>,
    mut test: impl FnMut(&str) -> Result<Verdict, E>,
) -> Result<Found, E> {
    let mut bad = bad.to_owned();
    let mut good = vec![good.to_owned()];
    let mut skipped = BTreeSet::new();
    loop {
        let left = suspects(&bad, &good)?;
        let next = left.iter().find(|id| **id != bad && !skipped.contains(*id));
        let Some(next) = next else {
            return Ok(match left.iter().any(|id| *id != bad) {
                false => Found::First(bad),
                true => Found::OneOf(left),
            });
        };
        match test(next)? {
            Verdict::Good => good.push(next.clone()),
            Verdict::Bad => bad.clone_from(next),
            Verdict::Skip(_) => {
                skipped.insert(next.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Commits 0 to 15 in a line; the one in the middle of what is left is tested next.
    fn suspects(bad: &str, good: &[String]) -> Result<Vec<String>, Infallible> {
        let bad: usize = bad.parse().unwrap();
        let good: usize = good.iter().map(|id| id.parse().unwrap()).max().unwrap();
        let mut left: Vec<usize> = (good + 1..=bad).collect();
        let middle = good.midpoint(bad);
        left.sort_by_key(|id| (id.abs_diff(middle), *id));
        Ok(left.iter().map(ToString::to_string).collect())
    }

    fn run(first_bad: usize, untestable: &[usize]) -> (Found, usize) {
        let mut tests = 0;
        let found = search("0", "15", suspects, |id| {
            tests += 1;
            let id: usize = id.parse().unwrap();
            Ok(if untestable.contains(&id) {
                Verdict::Skip("does not build".to_owned())
            } else if id >= first_bad {
                Verdict::Bad
            } else {
                Verdict::Good
            })
        })
        .unwrap();
        (found, tests)
    }

    #[test]
    fn finds_every_commit_in_few_tests() {
        for first_bad in 1..=15 {
            let (found, tests) = run(first_bad, &[]);
            assert_eq!(found, Found::First(first_bad.to_string()));
            assert!(tests <= 4, "{tests} tests for {first_bad}");
        }
    }

    #[test]
    fn goes_round_what_cannot_be_tested() {
        assert_eq!(run(11, &[7, 8, 5]).0, Found::First("11".to_owned()));
    }

    #[test]
    fn says_so_when_it_cannot_tell() {
        let (found, _) = run(8, &[7, 8]);
        let Found::OneOf(mut left) = found else {
            panic!("{found:?}");
        };
        left.sort();
        assert_eq!(left, ["7", "8", "9"]);
    }
}
