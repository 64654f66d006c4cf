//! Text from guests and files, which may contain anything.

/// A text as one line, without control characters.
#[must_use]
pub fn printable(text: &str) -> String {
    let harmless = |c: char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
    text.chars()
        .map(|c| if harmless(c) { c } else { ' ' })
        .collect()
}
