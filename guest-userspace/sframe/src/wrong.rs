//! Sections of which one field is wrong, by number.

use crate::{Encoded, FieldKind};

/// What was made wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrong {
    /// The field.
    pub kind: FieldKind,
    /// Where it is in the section.
    pub at: usize,
    /// Its value, of which as many low bytes count as the field has.
    pub value: u64,
}

/// A generator of numbers that look random and follow from a seed (splitmix64).
#[derive(Debug, Clone, Copy)]
pub struct Numbers(u64);

impl Numbers {
    /// Those of a seed and a trial.
    #[must_use]
    pub const fn of(seed: u64, trial: u64) -> Self {
        Self(seed ^ trial.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next one.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of these.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let count = u64::try_from(of.len()).ok().filter(|&count| count > 0)?;
        let index = usize::try_from(self.draw() % count).ok()?;
        of.get(index).copied()
    }
}

impl Encoded {
    /// Makes one field wrong: its kind first, so that each kind is tried as often, then one of that
    /// kind, then a value, mostly at an edge, and never that which the field had. `None` if there is
    /// no field.
    pub fn make_wrong(&mut self, numbers: &mut Numbers) -> Option<Wrong> {
        // Each time the odds are better than one half.
        (0..64).find_map(|_| self.try_wrong(numbers))
    }

    fn try_wrong(&mut self, numbers: &mut Numbers) -> Option<Wrong> {
        let mut kinds: Vec<FieldKind> = self.fields.iter().map(|it| it.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kind = numbers.one(&kinds)?;
        let all: Vec<usize> = (self.fields.iter().enumerate())
            .filter(|(_, field)| field.kind == kind)
            .map(|(index, _)| index)
            .collect();
        let field = self.fields.get(numbers.one(&all)?)?.clone();
        let old = self.bytes.get(field.bytes.clone())?;
        let old = old.iter().rfold(0, |n, &byte| n << 8 | u64::from(byte));
        let bits = 8 * u32::try_from(field.bytes.len()).ok()?;
        let mask = u64::MAX >> 64_u32.saturating_sub(bits);
        let length = u64::try_from(self.bytes.len()).ok()?;
        let half = mask / 2;
        let edges = [
            0,
            1,
            2,
            half,
            half + 1,
            mask,
            mask - 1,
            length,
            length.wrapping_sub(1),
            length + 1,
            old.wrapping_add(1),
            old.wrapping_sub(1),
            old.wrapping_mul(2),
            old ^ (1 << (numbers.draw() % u64::from(bits))),
            old ^ (1 << (numbers.draw() % u64::from(bits))),
            numbers.draw(),
            numbers.draw() % (2 * length),
        ];
        let value = numbers.one(&edges)? & mask;
        let at = field.bytes.start;
        if value == old {
            return None;
        }
        self.set(&field, value);
        Some(Wrong { kind, at, value })
    }
}
