//! Whether a mutant makes a difference where it stands: the value that its code gives there, beside the one of the code without it.
//!
//! Only what can be computed twice without an effect is compared. Of anything else it is not known.

use std::ops::Range;

use tree_sitter::Node;

use super::change::Operator;
use super::source::Source;

/// Functions and macros of the kernel that change nothing, and read no more than their arguments and what belongs to this CPU or task.
const PURE: [&str; 19] = [
    "BIT",
    "READ_ONCE",
    "__this_cpu_read",
    "atomic_long_read",
    "frame_pointer",
    "in_hardirq",
    "in_nmi",
    "instruction_pointer",
    "irqs_disabled",
    "likely",
    "regs_irqs_disabled",
    "smp_processor_id",
    "task_pt_regs",
    "task_work_pending",
    "test_bit",
    "unlikely",
    "user_64bit_mode",
    "user_mode",
    "user_stack_pointer",
];

/// A condition of C that is true where the text with this change has another value than the text without it. None where that cannot
/// be computed beforehand. `site` is the place at which the mutant is chosen.
pub(super) fn condition(
    source: &Source,
    body: Node<'_>,
    site: &Range<usize>,
    operator: Operator,
    (range, with): &(Range<usize>, String),
) -> Option<String> {
    let end = range.end.max(range.start + 1);
    let node = body.descendant_for_byte_range(range.start, end)?;
    if let Some(found) = of_assignment(source, node, operator, with) {
        return found;
    }
    let whole = widest(source, node, site)?;
    let old = source.of(whole);
    let of = whole.byte_range();
    let before = source.text.get(of.start..range.start)?;
    let behind = source.text.get(range.end..of.end)?;
    let new = format!("{before}{with}{behind}");
    // What one of them does not come to, the other might.
    let chooses = has(whole, &|it| short(source, it));
    if chooses && looks_far(&new) {
        return None;
    }
    Some(values_differ(old, &new))
}

/// The widest expression without an effect that has this node, is in the site, and is computed whenever the site is executed.
fn widest<'a>(source: &Source, node: Node<'a>, site: &Range<usize>) -> Option<Node<'a>> {
    let is_in = |it: Node<'_>| site.start <= it.start_byte() && it.end_byte() <= site.end;
    let mut found = None;
    let mut at = Some(node);
    while let Some(it) = at.filter(|it| is_in(*it)) {
        // Arguments in brackets would be the value of the last.
        if is_pure(source, it) && it.kind() != "argument_list" {
            found = Some(it);
        }
        let above = it.parent();
        if let Some(parent) = above.filter(|parent| is_in(*parent)) {
            let is = |field: &str| parent.child_by_field_name(field) == Some(it);
            let only_sometimes = (short(source, parent) && is("right"))
                || is("consequence")
                || is("alternative")
                || parent.kind() == "compound_statement";
            if only_sometimes && !is_pure(source, parent) {
                return None;
            }
        }
        at = above;
    }
    found
}

/// The same of a change of `a = b;` or `a |= b;` as a whole: nothing where it is none.
fn of_assignment(
    source: &Source,
    node: Node<'_>,
    operator: Operator,
    with: &str,
) -> Option<Option<String>> {
    let (assignment, new_sign) = match (operator, node.kind()) {
        (Operator::DeleteStatement, "expression_statement") => (node.named_child(0)?, None),
        (Operator::ChangeOperator, _) => (node.parent()?, with.strip_suffix('=')),
        _ => return None,
    };
    if assignment.kind() != "assignment_expression" {
        return None;
    }
    let part = |field: &str| assignment.child_by_field_name(field);
    let (left, right) = (part("left")?, part("right")?);
    let sign = source.of(part("operator")?).strip_suffix('=')?;
    let (to, value) = (source.of(left), source.of(right));
    // A variable of the function may have no value yet.
    let has_a_value = to.contains("->") || to.starts_with('*') || !sign.is_empty();
    if !has_a_value || !is_pure(source, left) || !is_pure(source, right) {
        return Some(None);
    }
    let old = match sign {
        "" => value.to_owned(),
        sign => format!("({to}) {sign} ({value})"),
    };
    let new = match new_sign {
        Some(sign) if !sign.is_empty() => format!("({to}) {sign} ({value})"),
        Some(_) => return Some(None),
        None => to.to_owned(),
    };
    Some(Some(values_differ(&old, &new)))
}

fn values_differ(old: &str, new: &str) -> String {
    let one_line = |text: &str| text.replace('\n', " ");
    format!("({}) != ({})", one_line(old), one_line(new))
}

/// Whether an expression can be computed once more.
fn is_pure(source: &Source, node: Node<'_>) -> bool {
    let is_known = match node.kind() {
        "identifier" | "field_identifier" | "number_literal" | "true" | "false" | "null"
        | "char_literal" => return true,
        "call_expression" => {
            let function = node.child_by_field_name("function");
            function.is_some_and(|it| PURE.contains(&source.of(it)))
        }
        kind => matches!(
            kind,
            "parenthesized_expression"
                | "binary_expression"
                | "unary_expression"
                | "pointer_expression"
                | "field_expression"
                | "subscript_expression"
                | "conditional_expression"
                | "argument_list"
        ),
    };
    let mut cursor = node.walk();
    is_known && !node.has_error() && { node.named_children(&mut cursor) }
        .all(|it| is_pure(source, it))
}

/// Whether an expression computes some of its parts only sometimes.
fn short(source: &Source, node: Node<'_>) -> bool {
    let sign = node.child_by_field_name("operator");
    node.kind() == "conditional_expression"
        || (node.kind() == "binary_expression"
            && sign.is_some_and(|it| ["&&", "||"].contains(&source.of(it))))
}

fn has(node: Node<'_>, what: &dyn Fn(Node<'_>) -> bool) -> bool {
    let mut cursor = node.walk();
    what(node) || node.named_children(&mut cursor).any(|it| has(it, what))
}

/// Whether a text reads memory that may not be there.
fn looks_far(text: &str) -> bool {
    let text = text.replace("current->", "");
    ["->", "[", "*", "test_bit("]
        .iter()
        .any(|it| text.contains(it))
}
