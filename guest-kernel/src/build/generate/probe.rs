//! Kernels that die where they execute a statement: whoever tests one and sees it live has not executed the statement.

use tree_sitter::Node;

use super::change::{Change, Operator};
use super::source::{Definition, Source};

/// `ud2` (Intel SDM, volume 2B), for which no header is needed. The kernel's handler of #UD finds no entry in its table of
/// bugs, and oopses (`handle_invalid_op`, arch/x86/kernel/traps.c).
const TRAP: &str = "__builtin_trap();";

/// A trap before the statement at this place. None in a macro, or where no statement of a function stands.
pub(super) fn of(source: &Source, definition: Definition<'_>, at: usize) -> Option<Change> {
    if definition.is_macro() {
        return None;
    }
    let mut node = definition.body.descendant_for_byte_range(at, at + 1)?;
    while !is_statement(node) {
        node = node.parent().filter(|it| *it != definition.body)?;
    }
    let in_block = node
        .parent()
        .is_some_and(|it| ["compound_statement", "case_statement"].contains(&it.kind()));
    let statement = source.of(node);
    let with = match in_block {
        true => format!("{TRAP} {statement}"),
        false => format!("{{ {TRAP} {statement} }}"),
    };
    let change = Change::one(
        Operator::SwapStatements,
        &source.text,
        node.byte_range(),
        &with,
    );
    Some(change)
}

/// Whether something can stand before a node, by itself or in braces.
fn is_statement(node: Node<'_>) -> bool {
    let in_block = node.parent().map(|it| it.kind()) == Some("compound_statement");
    match node.kind() {
        "compound_statement" | "case_statement" | "labeled_statement" => false,
        "declaration" => in_block,
        kind => kind.ends_with("_statement"),
    }
}

/// The file with traps in all its functions and nonsense in all its macros: no object that uses one of them becomes what it
/// is without.
pub(super) fn of_all(source: &Source) -> String {
    let mut text = source.text.clone();
    for definition in source.definitions().iter().rev() {
        let start = definition.body.start_byte();
        match definition.is_macro() {
            true => text.insert_str(start, "@ "),
            false => text.insert_str(start + 1, TRAP),
        }
    }
    text
}
