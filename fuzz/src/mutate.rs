//! Changes inputs where no fuzzer is at hand. libFuzzer does this better: it sees what is new.

use fastrand::Rng;

/// Values at which arithmetic goes wrong.
const NUMBERS: [u64; 10] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];

/// An input made of one of these, with up to eight changes, no longer than `longest`.
#[must_use]
pub fn mutated(corpus: &[Vec<u8>], longest: usize, random: &mut Rng) -> Vec<u8> {
    let mut data = random.choice(corpus).cloned().unwrap_or_default();
    for _ in 0..random.usize(1..=8) {
        let other = random.choice(corpus).map_or(&[][..], Vec::as_slice);
        change(&mut data, other, random);
    }
    data.truncate(longest);
    data
}

fn change(data: &mut Vec<u8>, other: &[u8], random: &mut Rng) {
    let at = random.usize(0..=data.len());
    let count = random.usize(0..=(data.len() - at).min(64));
    let kind = random.u8(0..7);
    match kind {
        0 => data
            .get_mut(at)
            .into_iter()
            .for_each(|byte| *byte ^= 1 << random.u8(0..8)),
        1 => data
            .get_mut(at)
            .into_iter()
            .for_each(|byte| *byte = random.u8(..)),
        2 => drop(data.drain(at..at + count)),
        3 => {
            let from = random.usize(0..=other.len());
            let end = (from + random.usize(0..=64)).min(other.len());
            data.splice(
                at..at,
                other.get(from..end).unwrap_or_default().iter().copied(),
            );
        }
        4 => {
            let repeated = data.get(at..at + count).unwrap_or_default().to_vec();
            data.splice(at..at, repeated);
        }
        5 => {
            let width = 1 << random.u32(0..4);
            let number = random.choice(NUMBERS).unwrap_or_default();
            put(data, at, &number.to_le_bytes(), width);
        }
        _ => {
            let width = 1 << random.u32(0..4);
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(data.get(at..).unwrap_or_default()) {
                *to = *from;
            }
            let near = u64::from_le_bytes(word)
                .wrapping_add(random.u64(0..17))
                .wrapping_sub(8);
            put(data, at, &near.to_le_bytes(), width);
        }
    }
}

/// Writes the first bytes of a word over what is there.
fn put(data: &mut [u8], at: usize, word: &[u8], width: usize) {
    let places = data.get_mut(at..).unwrap_or_default();
    for (to, from) in places.iter_mut().zip(word).take(width) {
        *to = *from;
    }
}
