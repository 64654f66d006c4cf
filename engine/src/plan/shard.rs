//! A part of the trials of a command that is made on several machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::sweep::Boundary;

/// Most parts.
pub const MAX_SHARDS: u32 = 10_000;

/// Part I of N parts: `I/N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shard {
    /// I, from 1.
    pub number: u32,
    /// N.
    pub of: u32,
}

/// The text is not a [`Shard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected I/N, part I of N, such as 3/8, with N up to {MAX_SHARDS}")]
pub struct ShardError;

impl Shard {
    /// Whether this is one of its parts.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.number >= 1 && self.number <= self.of && self.of <= MAX_SHARDS
    }

    /// Whether a boundary of a path is in this part. Exactly one of N parts has it, in each boot: the number of a
    /// boundary may differ there, its instruction and occurrence do not.
    #[must_use]
    pub fn has(self, boundary: Boundary) -> bool {
        self.has_number(mixed(boundary.rip ^ mixed(u64::from(boundary.occurrence))))
    }

    /// Whether what has this name is in this part, or of what has several trials, this one. Exactly one of N parts has it.
    #[must_use]
    pub fn has_name(self, name: &str, trial: Option<u32>) -> bool {
        self.number == self.owner(name, trial)
    }

    /// The number of the part that has it.
    #[must_use]
    pub fn owner(self, name: &str, trial: Option<u32>) -> u32 {
        let trial = trial.map_or(0, |it| u64::from(it).saturating_add(1));
        let number = mixed(hashed(name) ^ mixed(trial)).checked_rem(u64::from(self.of));
        let number = number.and_then(|it| u32::try_from(it).ok());
        number.unwrap_or_default().saturating_add(1)
    }

    /// Whether the n-th of things in an order that all parts agree on is in this part.
    #[must_use]
    pub fn has_number(self, number: u64) -> bool {
        number.checked_rem(u64::from(self.of)) == Some(u64::from(self.number.saturating_sub(1)))
    }
}

/// FNV-1a of a text: the same on each machine and in each version of this program.
fn hashed(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Numbers that are close together lead to numbers that are not (the last steps of `SplitMix64`).
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl fmt::Display for Shard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, of) = text.split_once('/').ok_or(ShardError)?;
        let number = number.parse().map_err(|_| ShardError)?;
        let of = of.parse().map_err(|_| ShardError)?;
        let shard = Self { number, of };
        shard.is_valid().then_some(shard).ok_or(ShardError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_is_written() {
        let read = |text: &str| text.parse::<Shard>();
        assert_eq!(read("3/8").unwrap().to_string(), "3/8");
        for wrong in ["0/8", "9/8", "1/0", "8", "1/10001", "-1/3", "1/3/4", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_boundary_is_in_one_part_however_many_there_are() {
        let boundaries: Vec<Boundary> = (0..4000_u64)
            .map(|it| Boundary {
                rip: 0xffff_ffff_8100_0000 + 3 * it,
                occurrence: 1 + u32::try_from(it % 5).unwrap(),
            })
            .collect();
        for of in [1, 2, 3, 7, 8, 64] {
            let parts: Vec<Shard> = (1..=of).map(|number| Shard { number, of }).collect();
            for &boundary in &boundaries {
                let having = parts.iter().filter(|it| it.has(boundary)).count();
                assert_eq!(having, 1, "{boundary:?} of {of}");
            }
            let share = boundaries.len() / of as usize;
            for part in parts {
                let has = boundaries.iter().filter(|it| part.has(**it)).count();
                assert!(has > share / 3 && has < share * 3, "{part}: {has}");
            }
        }
    }

    #[test]
    fn each_name_and_trial_is_in_one_part_however_many_there_are() {
        let names = ["nmi-in-syscall", "nmi-in-idle", "lab-explore-cancel"];
        let named = names.iter().map(|name| (*name, None));
        let trials = (1..=400).map(|trial| ("lab-explore-cancel", Some(trial)));
        let units: Vec<(&str, Option<u32>)> = named.chain(trials).collect();
        for of in [1, 2, 3, 8, 64] {
            let parts: Vec<Shard> = (1..=of).map(|number| Shard { number, of }).collect();
            for (name, trial) in &units {
                let having = { parts.iter() }.filter(|it| it.has_name(name, *trial));
                assert_eq!(having.count(), 1, "{name} {trial:?} of {of}");
            }
            let share = units.len() / of as usize;
            for part in parts {
                let has = { units.iter() }.filter(|it| part.has_name(it.0, it.1));
                let has = has.count();
                assert!(has > share / 4 && has < share * 4, "{part}: {has}");
            }
        }
        // What part it is may not change with the version of this program.
        let of = |name| Shard { number: 1, of: 8 }.owner(name, None);
        assert_eq!(names.map(of), [7, 8, 3]);
    }
}
