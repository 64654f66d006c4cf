//! Similarity of names, for suggestions.

/// The distance between two names: 0 if `other` contains `wanted`, else the number of edits, if few.
pub(super) fn distance(wanted: &str, other: &str) -> Option<usize> {
    if wanted.len() >= 4 && other.contains(wanted) {
        return Some(0);
    }
    let limit = (wanted.len() / 4).clamp(1, 4);
    if wanted.len().abs_diff(other.len()) > limit {
        return None;
    }
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, a) in wanted.bytes().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        let mut best = left;
        for (cell, b) in row.iter_mut().skip(1).zip(other) {
            let above = *cell;
            let cost = (diagonal + usize::from(a != *b))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            *cell = cost;
            left = cost;
            best = best.min(cost);
        }
        if best > limit {
            return None;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().filter(|distance| *distance <= limit)
}
