//! Covering arrays: few set-ups in which every allowed pair (or triple) of levels occurs.
//!
//! One row at a time, as in AETG (Cohen, Dalal, Fredman, Patton: IEEE Trans. Software Eng. 23, 7,
//! 1997): a row starts from a combination that no row has yet, and each further factor, in random
//! order, gets the level with which most new combinations are covered. Of some candidates the best
//! is taken.

use super::factors::{FACTORS, Factor, Setup, number};
use super::rules::forbidden;

/// How many factors a combination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    /// Every pair of levels.
    Pairs,
    /// Every triple.
    Triples,
}

/// A combination of levels: factors in ascending order, each with its level.
type Combination = Vec<(usize, u8)>;

/// A forbidden combination, as of [`forbidden`].
type Forbidden = Vec<(usize, Vec<u8>)>;

/// What is to be covered, by any factors: the kernel's are those of [`FACTORS`].
#[derive(Debug)]
struct Space {
    /// The number of levels of each factor.
    levels: Vec<u8>,
    forbidden: Vec<Forbidden>,
    strength: usize,
}

/// A row that is not complete.
type Partial = Vec<Option<u8>>;

/// The set-ups that cover all combinations of this strength; the same for the same seed. The first
/// one has every factor at its default. `without` are levels that none has, no default among them.
#[must_use]
pub fn setups(strength: Strength, seed: u64, without: &[(Factor, &str)]) -> Vec<Setup> {
    let left_out = without.iter().filter_map(|&(factor, level)| {
        let level = number(factor, level).filter(|level| *level > 0)?;
        Some(vec![(factor as usize, vec![level])])
    });
    let space = Space {
        levels: { FACTORS.iter() }
            .map(|(_, levels)| u8::try_from(levels.len()).unwrap_or(u8::MAX))
            .collect(),
        forbidden: forbidden().into_iter().chain(left_out).collect(),
        strength: match strength {
            Strength::Pairs => 2,
            Strength::Triples => 3,
        },
    };
    let candidates = match strength {
        Strength::Pairs => 20,
        Strength::Triples => 2,
    };
    let rows = cover(&space, seed, candidates);
    rows.into_iter().map(Setup).collect()
}

fn cover(space: &Space, seed: u64, candidates: u32) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    let mut open = Open::new(space);
    let plain = vec![0; space.levels.len()];
    open.take(&plain);
    let mut rows = vec![plain];
    while let Some(start) = open.first() {
        let mut best: Option<(usize, Vec<u8>)> = None;
        for _ in 0..candidates {
            let row = candidate(space, &open, &start, &mut random);
            let new = open.new_in(&row);
            if best.as_ref().is_none_or(|(most, _)| new > *most) {
                best = Some((new, row));
            }
        }
        // Its start is new in it, so there are fewer open ones each time.
        let Some((_, row)) = best else { break };
        open.take(&row);
        rows.push(row);
    }
    rows
}

/// A row with the combination `start`.
fn candidate(space: &Space, open: &Open, start: &Combination, random: &mut Random) -> Vec<u8> {
    let mut row: Partial = vec![None; space.levels.len()];
    for &(factor, level) in start {
        set(&mut row, factor, level);
    }
    let mut order: Vec<usize> = (0..row.len()).collect();
    random.shuffle(&mut order);
    for factor in order {
        if row.get(factor).copied().flatten().is_some() {
            continue;
        }
        let mut levels: Vec<u8> = (0..space.levels.get(factor).copied().unwrap_or(1)).collect();
        random.shuffle(&mut levels);
        let mut best = (0, 0);
        for level in levels {
            set(&mut row, factor, level);
            let gain = 1 + open.gain(&row, factor);
            // The default is always allowed.
            if gain > best.0 && space.allows(&row) {
                best = (gain, level);
            }
        }
        set(&mut row, factor, best.1);
    }
    row.into_iter().map(Option::unwrap_or_default).collect()
}

fn set(row: &mut Partial, factor: usize, level: u8) {
    if let Some(place) = row.get_mut(factor) {
        *place = Some(level);
    }
}

impl Space {
    /// Whether what is set breaks no rule.
    fn allows(&self, row: &Partial) -> bool {
        let matches = |(factor, levels): &(usize, Vec<u8>)| {
            let level = row.get(*factor).copied().flatten();
            level.is_some_and(|level| levels.contains(&level))
        };
        !self.forbidden.iter().any(|rule| rule.iter().all(matches))
    }
}

/// The combinations that are not covered yet.
#[derive(Debug)]
struct Open {
    /// The number of each factor's level 0 among all levels.
    base: Vec<usize>,
    /// Levels of all factors.
    width: usize,
    strength: usize,
    /// By the number of a combination; a bit each would save memory and cost time.
    is_open: Vec<bool>,
    left: usize,
    /// No combination before this number is open.
    from: std::cell::Cell<usize>,
}

impl Open {
    fn new(space: &Space) -> Self {
        let mut width = 0;
        let mut base = Vec::new();
        for levels in &space.levels {
            base.push(width);
            width += usize::from(*levels);
        }
        let exponent = u32::try_from(space.strength).unwrap_or(u32::MAX);
        let mut open = Self {
            base,
            width,
            strength: space.strength,
            is_open: vec![false; width.pow(exponent)],
            left: 0,
            from: std::cell::Cell::new(0),
        };
        let mut all = Vec::new();
        combinations(space, 0, &mut Vec::new(), &mut all);
        for combination in all {
            let mut row: Partial = vec![None; space.levels.len()];
            for &(factor, level) in &combination {
                set(&mut row, factor, level);
            }
            if space.allows(&row) {
                let at = open.number(&combination);
                if let Some(is_open) = open.is_open.get_mut(at) {
                    *is_open = true;
                    open.left += 1;
                }
            }
        }
        open
    }

    fn place(&self, factor: usize, level: u8) -> usize {
        self.base.get(factor).copied().unwrap_or(0) + usize::from(level)
    }

    fn number(&self, combination: &[(usize, u8)]) -> usize {
        combination.iter().fold(0, |number, &(factor, level)| {
            number * self.width + self.place(factor, level)
        })
    }

    /// An open combination, the first in order.
    fn first(&self) -> Option<Combination> {
        let from = self.from.get();
        let found = self.is_open.get(from..)?.iter().position(|open| *open)?;
        self.from.set(from + found);
        let mut rest = from + found;
        let mut combination = Vec::new();
        for _ in 0..self.strength {
            let place = rest % self.width;
            rest /= self.width;
            let factor = self.base.partition_point(|base| *base <= place) - 1;
            let level = place - self.base.get(factor).copied().unwrap_or(0);
            combination.push((factor, u8::try_from(level).unwrap_or(0)));
        }
        combination.reverse();
        Some(combination)
    }

    /// How many open combinations the level of `factor` makes with the others that are set.
    fn gain(&self, row: &Partial, factor: usize) -> usize {
        let level = |at: usize| row.get(at).copied().flatten().map(|level| (at, level));
        let Some(own) = level(factor) else { return 0 };
        let others: Vec<(usize, u8)> = (0..row.len())
            .filter(|at| *at != factor)
            .filter_map(level)
            .collect();
        let is_open = |combination: &[(usize, u8)]| {
            usize::from(self.is_open.get(self.number(combination)) == Some(&true))
        };
        let mut gain = 0;
        for (at, &a) in others.iter().enumerate() {
            if self.strength == 2 {
                gain += is_open(&if own < a { [own, a] } else { [a, own] });
                continue;
            }
            for &b in others.get(at + 1..).unwrap_or_default() {
                gain += is_open(&match () {
                    () if own < a => [own, a, b],
                    () if own < b => [a, own, b],
                    () => [a, b, own],
                });
            }
        }
        gain
    }

    fn of_row(&self, row: &[u8]) -> Vec<usize> {
        let all: Vec<(usize, u8)> = row.iter().copied().enumerate().collect();
        let mut numbers = Vec::new();
        for (a, &first) in all.iter().enumerate() {
            for (b, &second) in all.iter().enumerate().skip(a + 1) {
                if self.strength == 2 {
                    numbers.push(self.number(&[first, second]));
                    continue;
                }
                for &third in all.get(b + 1..).unwrap_or_default() {
                    numbers.push(self.number(&[first, second, third]));
                }
            }
        }
        numbers
    }

    fn new_in(&self, row: &[u8]) -> usize {
        let numbers = self.of_row(row).into_iter();
        numbers
            .filter(|at| self.is_open.get(*at) == Some(&true))
            .count()
    }

    fn take(&mut self, row: &[u8]) {
        for number in self.of_row(row) {
            if let Some(is_open) = self.is_open.get_mut(number) {
                self.left -= usize::from(*is_open);
                *is_open = false;
            }
        }
    }
}

fn combinations(space: &Space, from: usize, so_far: &mut Combination, all: &mut Vec<Combination>) {
    if so_far.len() == space.strength {
        all.push(so_far.clone());
        return;
    }
    for factor in from..space.levels.len() {
        for level in 0..space.levels.get(factor).copied().unwrap_or(0) {
            so_far.push((factor, level));
            combinations(space, factor + 1, so_far, all);
            so_far.pop();
        }
    }
}

/// `SplitMix64` (Steele, Lea, Flood: OOPSLA 2014): the rows of a seed must never change with a crate.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let bound = last as u64 + 1;
            let at = usize::try_from(self.next() % bound).unwrap_or(0);
            list.swap(at, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every allowed combination is in a row, by another way of counting than the generator's.
    fn check(space: &Space, rows: &[Vec<u8>]) {
        let as_partial = |row: &[u8]| row.iter().map(|level| Some(*level)).collect::<Partial>();
        for row in rows {
            assert!(space.allows(&as_partial(row)), "{row:?} breaks a rule");
            assert!(
                row.iter()
                    .zip(&space.levels)
                    .all(|(level, levels)| level < levels)
            );
        }
        let mut all = Vec::new();
        combinations(space, 0, &mut Vec::new(), &mut all);
        for combination in all {
            let mut partial: Partial = vec![None; space.levels.len()];
            for &(factor, level) in &combination {
                partial[factor] = Some(level);
            }
            let has = |row: &Vec<u8>| combination.iter().all(|&(at, level)| row[at] == level);
            let covered = rows.iter().any(has);
            assert_eq!(covered, space.allows(&partial), "{combination:?}");
        }
    }

    fn any_space() -> impl Strategy<Value = Space> {
        let levels = prop::collection::vec(1_u8..5, 3..8);
        let rule = prop::collection::vec((0_usize..8, prop::collection::vec(1_u8..5, 1..3)), 2..4);
        let rules = prop::collection::vec(rule, 0..5);
        (levels, rules, 2_usize..4).prop_map(|(levels, mut forbidden, strength)| {
            for rule in &mut forbidden {
                for (factor, _) in rule.iter_mut() {
                    *factor %= levels.len();
                }
                rule.sort();
                rule.dedup_by_key(|(factor, _)| *factor);
            }
            forbidden.retain(|rule| !rule.is_empty());
            Space {
                levels,
                forbidden,
                strength,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn every_allowed_combination_is_covered(space in any_space(), seed: u64) {
            check(&space, &cover(&space, seed, 3));
        }
    }

    fn kernels(strength: usize) -> Space {
        Space {
            levels: FACTORS
                .iter()
                .map(|(_, levels)| u8::try_from(levels.len()).unwrap())
                .collect(),
            forbidden: forbidden(),
            strength,
        }
    }

    #[test]
    fn every_pair_of_the_set_ups_is_covered() {
        let rows: Vec<Vec<u8>> = setups(Strength::Pairs, 1, &[])
            .into_iter()
            .map(|it| it.0)
            .collect();
        check(&kernels(2), &rows);
        // The product of the two largest factors is the least that there can be.
        assert!((150..400).contains(&rows.len()), "{} rows", rows.len());
        assert!(rows[0].iter().all(|level| *level == 0));
    }

    #[test]
    fn a_seed_always_gives_the_same_rows() {
        let of = |seed, without: &[(Factor, &str)]| setups(Strength::Pairs, seed, without);
        assert_eq!(of(7, &[]), of(7, &[]));
        assert_ne!(of(7, &[]), of(8, &[]));
        let without = (Factor::AskerOf, "cgroup");
        let has = |rows: &[Setup]| rows.iter().any(|it| it.is(without.0, without.1));
        assert!(has(&of(7, &[])));
        assert!(!has(&of(7, &[without])));
    }
}
