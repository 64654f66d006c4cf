//! Where the code of a mutant can stand beside the code without it, so that one kernel has both.

use std::ops::Range;

use tree_sitter::Node;

use super::source::{Definition, Source};

/// What of the source is there once for each mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One statement, or several that stand beside each other.
    Statements,
    /// What `if` and loops ask.
    Condition,
    /// What a variable begins with, or what `switch` looks at.
    Value,
    /// What a `for` does once, or each time.
    Effect,
    /// Nothing: a statement whose effect lasts beyond it, such as `guard()`. It is only noted that it is reached.
    Reached,
}

/// A place in the source at which mutants are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Site {
    pub range: Range<usize>,
    pub form: Form,
}

impl Site {
    /// The smallest that has this range of a function. None in a macro, and where the grammar does not understand what is around it.
    pub fn of(source: &Source, definition: Definition<'_>, range: &Range<usize>) -> Option<Self> {
        if definition.is_macro() {
            return None;
        }
        let end = range.end.max(range.start + 1);
        let mut node = { definition.body }.descendant_for_byte_range(range.start, end)?;
        loop {
            if node == definition.body || node.kind() == "compound_statement" {
                return several(source, node, range);
            }
            let parent = node.parent()?;
            let is = |field: &str| parent.child_by_field_name(field) == Some(node);
            let form = match (node.kind(), parent.kind()) {
                (_, "if_statement" | "while_statement" | "do_statement" | "for_statement")
                    if is("condition") =>
                {
                    Some(Form::Condition)
                }
                (_, "switch_statement") if is("condition") => Some(Form::Value),
                (kind, "for_statement")
                    if kind != "declaration" && (is("initializer") || is("update")) =>
                {
                    Some(Form::Effect)
                }
                (kind, "init_declarator") if is("value") => {
                    let is_static = parent
                        .parent()
                        .is_some_and(|it| source.of(it).starts_with("static"));
                    (kind != "initializer_list" && !is_static).then_some(Form::Value)
                }
                ("declaration", "compound_statement") => Some(Form::Reached),
                (kind, _) if is_simple(kind) => Some(match lasts(source, node) {
                    true => Form::Reached,
                    false => Form::Statements,
                }),
                _ => None,
            };
            if let Some(form) = form {
                return (!is_for_the_compiler(source.of(node))).then(|| Self {
                    range: node.byte_range(),
                    form,
                });
            }
            node = parent;
        }
    }

    /// One that has this one and another, if they overlap and there is one.
    pub fn with(&self, other: &Self) -> Option<Self> {
        let has = |a: &Range<usize>, b: &Range<usize>| a.start <= b.start && b.end <= a.end;
        let range = self.range.start.min(other.range.start)..self.range.end.max(other.range.end);
        let form = match (
            has(&self.range, &other.range),
            has(&other.range, &self.range),
        ) {
            (true, true) if self.form == other.form => self.form,
            (true, _) if self.form == Form::Statements => Form::Statements,
            (_, true) if other.form == Form::Statements => Form::Statements,
            (false, false) if (self.form, other.form) == (Form::Statements, Form::Statements) => {
                Form::Statements
            }
            _ => return None,
        };
        Some(Self { range, form })
    }
}

/// A statement that contains no other, and whose end is its own.
fn is_simple(kind: &str) -> bool {
    matches!(
        kind,
        "expression_statement"
            | "return_statement"
            | "break_statement"
            | "continue_statement"
            | "goto_statement"
    )
}

/// Whether what a statement does ends with the block: `guard(mutex)(&lock);` declares a variable.
fn lasts(source: &Source, statement: Node<'_>) -> bool {
    let text = source.of(statement);
    ["guard(", "scoped_", "CLASS(", "DEFINE_", "DECLARE_"]
        .iter()
        .any(|it| text.starts_with(it))
}

/// Whether the compiler must know what a text is worth.
fn is_for_the_compiler(text: &str) -> bool {
    [
        "IS_ENABLED(",
        "BUILD_BUG_ON",
        "static_assert",
        "__builtin_constant_p",
    ]
    .iter()
    .any(|it| text.contains(it))
}

/// Those statements of a block that have the range.
fn several(source: &Source, block: Node<'_>, range: &Range<usize>) -> Option<Site> {
    let mut cursor = block.walk();
    let inside: Vec<Node<'_>> = block
        .named_children(&mut cursor)
        .filter(|it| it.end_byte() > range.start && it.start_byte() < range.end)
        .filter(|it| it.kind() != "comment")
        .collect();
    let (first, last) = (inside.first()?, inside.last()?);
    let all = first.start_byte()..last.end_byte();
    let whole = all.start <= range.start && range.end <= all.end;
    let each = { inside.iter() }.all(|it| is_simple(it.kind()) && !lasts(source, *it));
    (whole && each).then_some(Site {
        range: all,
        form: Form::Statements,
    })
}
