//! Changes of operators, numbers, flags and sizes.

use tree_sitter::Node;

use super::change::Operator;
use super::operators::{Changes, is_whole};

/// An operator and what it becomes.
const OPERATORS: [(&str, &str); 21] = [
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("==", "!="),
    ("!=", "=="),
    ("&&", "||"),
    ("||", "&&"),
    ("+", "-"),
    ("-", "+"),
    ("*", "+"),
    ("&", "|"),
    ("|", "&"),
    ("<<", ">>"),
    (">>", "<<"),
    ("|=", "&="),
    ("&=", "|="),
    ("+=", "-="),
    ("-=", "+="),
    ("++", "--"),
    ("--", "++"),
];

/// Names of which one can stand where another does.
const FLAGS: &[&[&str]] = &[
    &["UNWIND_PENDING", "UNWIND_USED", "UNWIND_ID"],
    &["PF_KTHREAD", "PF_EXITING"],
    &[
        "TWA_NONE",
        "TWA_RESUME",
        "TWA_SIGNAL",
        "TWA_SIGNAL_NO_IPI",
        "TWA_NMI_CURRENT",
    ],
    &[
        "PERF_CONTEXT_USER",
        "PERF_CONTEXT_USER_DEFERRED",
        "PERF_CONTEXT_KERNEL",
    ],
    &["PERF_RECORD_MISC_USER", "PERF_RECORD_MISC_KERNEL"],
    &["UNWIND_USER_TYPE_FP", "UNWIND_USER_TYPE_NONE"],
    &["TIF_NOTIFY_RESUME", "TIF_NOTIFY_SIGNAL"],
    &["true", "false"],
];

/// Types of another size.
const TYPES: [(&str, &str); 6] = [
    ("long", "int"),
    ("int", "long"),
    ("u64", "u32"),
    ("u32", "u64"),
    ("u16", "u8"),
    ("SZ_4K", "SZ_2K"),
];

/// Adds the changes of a node that is an operator or a value.
pub(super) fn change(changes: &mut Changes<'_>, node: Node<'_>) {
    match node.kind() {
        "binary_expression" if is_whole(node) => {
            operator(changes, node);
            sides(changes, node);
        }
        "assignment_expression" | "update_expression" if is_whole(node) => operator(changes, node),
        "unary_expression" if is_whole(node) => {
            let of = node.child_by_field_name("argument");
            let text = of.map(|it| changes.text(it));
            if let Some(text) = text.filter(|_| !is_in_directive(node)) {
                changes.replace(Operator::ChangeOperator, node, text);
            }
        }
        "number_literal" => number(changes, node),
        "identifier" | "true" | "false" => {
            let text = changes.text(node);
            let set = FLAGS.iter().find(|set| set.contains(&text));
            for other in set.into_iter().copied().flatten() {
                changes.replace(Operator::ChangeFlag, node, other);
            }
            size(changes, node);
        }
        "primitive_type" | "type_identifier" if is_of_sizeof(node) => size(changes, node),
        _ => {}
    }
}

fn operator(changes: &mut Changes<'_>, node: Node<'_>) {
    let Some(sign) = node.child_by_field_name("operator") else {
        return;
    };
    let text = changes.text(sign);
    if let Some((_, other)) = OPERATORS.iter().find(|(it, _)| *it == text) {
        changes.replace(Operator::ChangeOperator, sign, other);
    }
}

/// One side of `&&` or `||` alone.
fn sides(changes: &mut Changes<'_>, node: Node<'_>) {
    let is_and_or = node
        .child_by_field_name("operator")
        .is_some_and(|it| ["&&", "||"].contains(&changes.text(it)));
    if !is_and_or {
        return;
    }
    for side in ["left", "right"] {
        let kept = node.child_by_field_name(side).map(|it| changes.text(it));
        if let Some(kept) = kept {
            changes.replace(Operator::DropCondition, node, kept);
        }
    }
}

fn number(changes: &mut Changes<'_>, node: Node<'_>) {
    let text = changes.text(node);
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    };
    let Ok(value) = value else { return };
    if is_in_directive(node) {
        return;
    }
    let mut others = vec![value.wrapping_add(1), value.wrapping_sub(1), 0, -1];
    others.dedup();
    for other in others {
        if other != value {
            changes.replace(Operator::ChangeConstant, node, &other.to_string());
        }
    }
}

fn size(changes: &mut Changes<'_>, node: Node<'_>) {
    let text = changes.text(node);
    if let Some((_, other)) = TYPES.iter().find(|(it, _)| *it == text) {
        changes.replace(Operator::ChangeSize, node, other);
    }
}

/// Whether a type is what `sizeof` is asked of.
fn is_of_sizeof(node: Node<'_>) -> bool {
    let of = node.parent().and_then(|it| it.parent());
    of.is_some_and(|it| it.kind() == "sizeof_expression")
}

/// Whether a node is in the condition of an `#if`, which says what is compiled.
fn is_in_directive(node: Node<'_>) -> bool {
    let mut above = Some(node);
    let mut below = node;
    while let Some(it) = above {
        if it.kind() == "preproc_if" && it.child_by_field_name("condition") == Some(below) {
            return true;
        }
        below = it;
        above = it.parent();
    }
    false
}
