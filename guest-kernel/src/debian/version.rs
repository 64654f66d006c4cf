//! Debian version numbers: which of two is newer.
//!
//! The rule is that of deb-version(7): compare epoch, then upstream version, then revision. Runs of
//! digits compare as numbers, the rest by a table in which `~` sorts before everything, even the
//! end of the text.

use std::cmp::Ordering;
use std::fmt;

/// A Debian version such as `7.2.12-1~bpo13+1`, ordered as dpkg orders it.
#[derive(Debug, Clone)]
pub struct Version(String);

impl Version {
    /// A version as written in a package index.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The leading numbers of the upstream version: 7, 2, 12 of `1:7.2.12~rc1-1`.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        let (_, upstream, _) = split(&self.0);
        let dotted = upstream
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .next()
            .unwrap_or_default();
        dotted
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect()
    }
}

/// The numbers in `7`, `7.2` or `7.2.12`; `None` for any other text.
#[must_use]
pub fn parse_numbers(text: &str) -> Option<Vec<u64>> {
    text.split('.')
        .map(|part| part.parse().ok().filter(|_| !part.starts_with('+')))
        .collect()
}

/// `7.2` of 7 and 2.
#[must_use]
pub fn dotted(numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    numbers.join(".")
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let (epoch, upstream, revision) = split(&self.0);
        let (other_epoch, other_upstream, other_revision) = split(&other.0);
        compare_part(epoch, other_epoch)
            .then_with(|| compare_part(upstream, other_upstream))
            .then_with(|| compare_part(revision, other_revision))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Equal as dpkg sees it: `1.0` and `1.00-0` are.
impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

/// Epoch, upstream version and revision. A missing epoch is "0", a missing revision is empty.
fn split(text: &str) -> (&str, &str, &str) {
    let (epoch, rest) = text.split_once(':').unwrap_or(("0", text));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
    (epoch, upstream, revision)
}

fn compare_part(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while !a.is_empty() || !b.is_empty() {
        let order = compare_text(&mut a, &mut b).then_with(|| compare_number(&mut a, &mut b));
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

/// Compares up to the next digit, and removes what was compared from both.
fn compare_text(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (text_a, text_b) = (
        take_while(a, |c| !c.is_ascii_digit()),
        take_while(b, |c| !c.is_ascii_digit()),
    );
    let weights = |text: &[u8]| -> Vec<u32> {
        // The end of the text weighs 0: more than `~`, less than anything else.
        text.iter().map(|c| weight(*c)).chain([1]).collect()
    };
    weights(text_a).cmp(&weights(text_b))
}

/// Letters before all else, `~` before the end.
fn weight(c: u8) -> u32 {
    match c {
        b'~' => 0,
        c if c.is_ascii_alphabetic() => u32::from(c) + 2,
        c => u32::from(c) + 0x100,
    }
}

/// Compares a run of digits of any length as a number.
fn compare_number(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (digits_a, digits_b) = (
        take_while(a, u8::is_ascii_digit),
        take_while(b, u8::is_ascii_digit),
    );
    let significant =
        |digits: &[u8]| -> Vec<u8> { digits.iter().copied().skip_while(|c| *c == b'0').collect() };
    let (number_a, number_b) = (significant(digits_a), significant(digits_b));
    number_a
        .len()
        .cmp(&number_b.len())
        .then_with(|| number_a.cmp(&number_b))
}

fn take_while<'a>(text: &mut &'a [u8], mut wanted: impl FnMut(&u8) -> bool) -> &'a [u8] {
    let end = text.iter().position(|c| !wanted(c)).unwrap_or(text.len());
    let (head, tail) = text.split_at_checked(end).unwrap_or((text, &[]));
    *text = tail;
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(a: &str, b: &str) -> Ordering {
        Version::new(a).cmp(&Version::new(b))
    }

    #[test]
    fn orders_as_dpkg_does() {
        // Each pair was given to `dpkg --compare-versions A lt B`.
        for (older, newer) in [
            ("7.3~rc7-1~exp1", "7.3-1"),
            ("7.2.13-1", "7.3~rc7-1~exp1"),
            ("7.2.12-1~bpo13+1", "7.2.12-1"),
            ("7.3~rc7-1~exp1", "7.3.4-1~bpo13+1"),
            ("7.0.9-1", "7.0.12-2~bpo13+1"),
            ("6.12.94-1", "6.12.107-1"),
            ("1.0", "1:0.1"),
            ("1.0~", "1.0"),
            ("1.0", "1.0a"),
            ("1.0a", "1.0+"),
            ("1.0~~", "1.0~"),
            ("1.0-1", "1.0-1.1"),
            ("1.0", "1.0-1"),
            ("2.9", "18446744073709551616.1"),
        ] {
            assert_eq!(order(older, newer), Ordering::Less, "{older} {newer}");
            assert_eq!(order(newer, older), Ordering::Greater, "{newer} {older}");
        }
        assert_eq!(order("1.0", "0:1.00-0"), Ordering::Equal);
    }

    #[test]
    fn leading_numbers_of_the_upstream_version() {
        assert_eq!(Version::new("7.2.12-1~bpo13+1").numbers(), [7, 2, 12]);
        assert_eq!(Version::new("7.3~rc7-1~exp1").numbers(), [7, 3]);
        assert_eq!(
            Version::new("1:10.0.13+ds-0+deb13u1").numbers(),
            [10, 0, 13]
        );
        assert_eq!(Version::new("").numbers(), [0_u64; 0]);
        assert_eq!(Version::new("x").numbers(), [0_u64; 0]);
    }

    proptest::proptest! {
        #[test]
        fn is_a_total_order(a in "[0-9a-z.+~:-]{0,12}", b in "[0-9a-z.+~:-]{0,12}", c in "\\PC{0,8}") {
            let (a, b, c) = (Version::new(a), Version::new(b), Version::new(c));
            proptest::prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            proptest::prop_assert_eq!(a.cmp(&a), Ordering::Equal);
            if a <= b && b <= c {
                proptest::prop_assert!(a <= c);
            }
        }
    }
}
