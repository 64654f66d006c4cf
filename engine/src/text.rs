//! Text from guests and files, which may contain anything.

/// A text as one line in which every character is seen: others, such as those that change the direction of writing, are
/// escaped as in Rust (`\u{202e}`). Blanks of all kinds become spaces.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // These are printable, and `escape_debug` would escape them.
            '"' | '\'' | '\\' => line.push(c),
            _ if c.is_whitespace() => line.push(' '),
            _ => line.extend(c.escape_debug()),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_seen() {
        assert_eq!(
            printable("a \"b\" 'c' \\ d\u{e9}\u{65e5}"),
            "a \"b\" 'c' \\ d\u{e9}\u{65e5}"
        );
        assert_eq!(printable("a\nb\tc\u{2028}d"), "a b c d");
        assert_eq!(printable("\x1b[31m"), "\\u{1b}[31m");
        // Right to left; nothing at all; a byte order mark; a tag.
        for invisible in [
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{feff}',
            '\u{ad}',
            '\u{e0041}',
        ] {
            let shown = format!("\\u{{{:x}}}", u32::from(invisible));
            assert_eq!(printable(&invisible.to_string()), shown);
        }
    }
}
