//! Text from guests and files, which may hold anything.

/// A text as one line, without what could drive a terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    let harmless = |c: char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
    text.chars()
        .map(|c| if harmless(c) { c } else { ' ' })
        .collect()
}
