//! Markdown of the documentation as the plain text of a mail, wrapped at 75 columns.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Longest line of prose, in columns (Documentation/process/submitting-patches.rst).
pub const WIDTH: usize = 75;

/// A paragraph on lines of at most [`WIDTH`] columns; a longer word stays whole.
#[must_use]
pub fn wrapped(paragraph: &str) -> String {
    indented(paragraph, "", "")
}

fn indented(paragraph: &str, first: &str, rest: &str) -> String {
    let options = textwrap::Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(rest)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .word_separator(textwrap::WordSeparator::AsciiSpace);
    textwrap::fill(paragraph, options)
}

/// What a block of the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Paragraph,
    Item,
    Code,
    Row,
}

/// The text, without markup. Code stands indented, a row of a table on a line of its own.
#[must_use]
pub fn text(markdown: &str) -> String {
    let mut blocks: Vec<String> = Vec::new();
    let mut block = Block::Paragraph;
    let mut line = String::new();
    let mut number: Option<u64> = None;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Text(text) | Event::Code(text) => line.push_str(&text),
            Event::SoftBreak | Event::HardBreak => line.push(' '),
            Event::Start(Tag::List(start)) => number = start,
            Event::Start(Tag::Item) => block = Block::Item,
            Event::Start(Tag::CodeBlock(_)) => block = Block::Code,
            Event::Start(Tag::TableRow | Tag::TableHead) => block = Block::Row,
            Event::End(TagEnd::TableCell) => line.push_str(" | "),
            Event::End(
                TagEnd::Paragraph
                | TagEnd::Heading(_)
                | TagEnd::CodeBlock
                | TagEnd::Item
                | TagEnd::TableRow
                | TagEnd::TableHead,
            ) if !line.is_empty() => {
                let text = finished(block, &std::mem::take(&mut line), &mut number);
                match blocks.last_mut() {
                    // Rows of one table stand together.
                    Some(last) if block == Block::Row && last.starts_with("  ") => {
                        last.push('\n');
                        last.push_str(&text);
                    }
                    _ => blocks.push(text),
                }
                block = Block::Paragraph;
            }
            _ => {}
        }
    }
    blocks.join("\n\n")
}

fn finished(block: Block, text: &str, number: &mut Option<u64>) -> String {
    match block {
        Block::Paragraph => wrapped(text),
        Block::Item => match number {
            Some(at) => {
                let first = format!("{at}. ");
                *at += 1;
                indented(text, &first, "   ")
            }
            None => indented(text, "- ", "  "),
        },
        Block::Code => {
            let lines: Vec<String> = text.lines().map(|line| format!("    {line}")).collect();
            lines.join("\n")
        }
        Block::Row => indented(text.trim_end_matches(" | "), "  ", "      "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_goes_and_words_stay() {
        let markdown = "A `sample` of [F001](F001.md) is\n**not** wrong.\n\n1. one\n2. two\n\n- x\n\n```c\nint a;\n\tb\n```\n";
        let wanted =
            "A sample of F001 is not wrong.\n\n1. one\n\n2. two\n\n- x\n\n    int a;\n    \tb";
        assert_eq!(text(markdown), wanted);
    }

    #[test]
    fn a_table_is_a_row_on_each_line() {
        let markdown = "Look:\n\n| a | b |\n|---|---|\n| 1 | `two` |\n";
        assert_eq!(text(markdown), "Look:\n\n  a | b\n  1 | two");
    }

    #[test]
    fn lines_are_short() {
        let long = "word ".repeat(100);
        assert!(text(&long).lines().all(|line| line.len() <= WIDTH));
        let whole = "x".repeat(100);
        assert_eq!(wrapped(&format!("a {whole}")), format!("a\n{whole}"));
    }
}
