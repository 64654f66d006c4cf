//! The search: it halves the suspects and leaves out commits that cannot be tested.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What is known of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "reason")]
pub enum CommitVerdict {
    /// It does not show the symptom.
    Good,
    /// It shows the symptom.
    Bad,
    /// It cannot be tested, for this reason.
    Skip(String),
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstBad<T> {
    /// The first bad commit.
    Commit(T),
    /// The first bad commit is one of these: the others could not be tested.
    OneOf(Vec<T>),
}

impl<T> FirstBad<T> {
    /// Applies `map` to each commit.
    pub(super) fn try_map<U, E>(
        self,
        mut map: impl FnMut(T) -> Result<U, E>,
    ) -> Result<FirstBad<U>, E> {
        Ok(match self {
            Self::Commit(it) => FirstBad::Commit(map(it)?),
            Self::OneOf(all) => {
                FirstBad::OneOf(all.into_iter().map(map).collect::<Result<_, E>>()?)
            }
        })
    }
}

/// Finds the first bad commit between one that is known to be good and one that is known to be bad.
///
/// `suspects` returns the commits that can be it, `bad` included, the best one to test next first.
///
/// # Errors
/// The errors of the two functions.
pub fn search<E>(
    good: &str,
    bad: &str,
    mut suspects: impl FnMut(&str, &[String]) -> Result<Vec<String>, E>,
    mut test: impl FnMut(&str) -> Result<CommitVerdict, E>,
) -> Result<FirstBad<String>, E> {
    let mut bad = bad.to_owned();
    let mut good = vec![good.to_owned()];
    let mut skipped = BTreeSet::new();
    loop {
        let left = suspects(&bad, &good)?;
        let next = left.iter().find(|id| **id != bad && !skipped.contains(*id));
        let Some(next) = next else {
            return Ok(match left.iter().any(|id| *id != bad) {
                false => FirstBad::Commit(bad),
                true => FirstBad::OneOf(left),
            });
        };
        match test(next)? {
            CommitVerdict::Good => good.push(next.clone()),
            CommitVerdict::Bad => bad.clone_from(next),
            CommitVerdict::Skip(_) => {
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

    fn run(first_bad: usize, untestable: &[usize]) -> (FirstBad<String>, usize) {
        let mut tests = 0;
        let found = search("0", "15", suspects, |id| {
            tests += 1;
            let id: usize = id.parse().unwrap();
            Ok(if untestable.contains(&id) {
                CommitVerdict::Skip("does not build".to_owned())
            } else if id >= first_bad {
                CommitVerdict::Bad
            } else {
                CommitVerdict::Good
            })
        })
        .unwrap();
        (found, tests)
    }

    #[test]
    fn finds_every_commit_in_few_tests() {
        for first_bad in 1..=15 {
            let (found, tests) = run(first_bad, &[]);
            assert_eq!(found, FirstBad::Commit(first_bad.to_string()));
            assert!(tests <= 4, "{tests} tests for {first_bad}");
        }
    }

    #[test]
    fn goes_round_what_cannot_be_tested() {
        assert_eq!(run(11, &[7, 8, 5]).0, FirstBad::Commit("11".to_owned()));
    }

    #[test]
    fn says_so_when_it_cannot_tell() {
        let (found, _) = run(8, &[7, 8]);
        let FirstBad::OneOf(mut left) = found else {
            panic!("{found:?}");
        };
        left.sort();
        assert_eq!(left, ["7", "8", "9"]);
    }
}
