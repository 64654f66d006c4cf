//! Changes of statements and of the conditions in them.

use tree_sitter::Node;

use super::change::{Change, Operator};
use super::operators::{Changes, is_whole};

/// Calls that take a lock or guard, and those that release it.
const LOCKS: [(&str, &str); 7] = [
    ("mutex_lock", "mutex_unlock"),
    ("spin_lock", "spin_unlock"),
    ("raw_spin_lock_irq", "raw_spin_unlock_irq"),
    ("raw_spin_lock_irqsave", "raw_spin_unlock_irqrestore"),
    ("local_irq_save", "local_irq_restore"),
    ("preempt_disable", "preempt_enable"),
    ("rcu_read_lock", "rcu_read_unlock"),
];

/// Adds the changes of a node that is a statement.
pub(super) fn change(changes: &mut Changes<'_>, node: Node<'_>) {
    match node.kind() {
        "expression_statement" | "break_statement" | "continue_statement" | "goto_statement"
            if is_whole(node) =>
        {
            changes.replace(Operator::DeleteStatement, node, ";");
        }
        "return_statement" if is_whole(node) => of_return(changes, node),
        "if_statement" => {
            if let Some(condition) = condition(node) {
                changes.replace(Operator::FixCondition, condition, "(1)");
                changes.replace(Operator::FixCondition, condition, "(0)");
                negate(changes, condition);
            }
        }
        // One that never ends tells nothing that a missing statement would not.
        "while_statement" | "do_statement" => {
            if let Some(condition) = condition(node) {
                changes.replace(Operator::FixCondition, condition, "(0)");
                negate(changes, condition);
            }
        }
        "conditional_expression" => {
            let condition = node.child_by_field_name("condition");
            if let Some(condition) = condition.filter(|it| is_whole(*it)) {
                changes.replace(Operator::FixCondition, condition, "1");
                changes.replace(Operator::FixCondition, condition, "0");
            }
        }
        "compound_statement" => {
            swap(changes, node);
            locks(changes, node);
        }
        _ => {}
    }
}

/// The condition of a statement, in its parentheses.
fn condition(node: Node<'_>) -> Option<Node<'_>> {
    node.child_by_field_name("condition")
        .filter(|it| it.kind() == "parenthesized_expression" && is_whole(*it))
}

fn negate(changes: &mut Changes<'_>, condition: Node<'_>) {
    let negated = format!("(!{})", changes.text(condition));
    changes.replace(Operator::NegateCondition, condition, &negated);
}

fn of_return(changes: &mut Changes<'_>, node: Node<'_>) {
    let Some(value) = node.named_child(0) else {
        changes.replace(Operator::DeleteStatement, node, ";");
        return;
    };
    let is_last = node.parent().is_some_and(|parent| {
        let last = neighbours(parent).last().copied();
        let of_function = parent.parent().map(|it| it.kind());
        last == Some(node) && of_function == Some("function_definition")
    });
    if !is_last {
        changes.replace(Operator::DeleteStatement, node, ";");
    }
    for other in ["0", "1", "-1"] {
        changes.replace(Operator::ChangeReturn, value, other);
    }
}

/// The statements of a block that stand beside each other, without comments.
fn neighbours(block: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = block.walk();
    let children = block.named_children(&mut cursor);
    children.filter(|it| it.kind() != "comment").collect()
}

fn swap(changes: &mut Changes<'_>, block: Node<'_>) {
    let is_one = |node: &Node<'_>| node.kind() == "expression_statement" && is_whole(*node);
    let statements = neighbours(block);
    for pair in statements.windows(2) {
        let [first, second] = pair else { continue };
        if !is_one(first) || !is_one(second) {
            continue;
        }
        let text = &changes.source.text;
        let between = text.get(first.end_byte()..second.start_byte());
        let swapped = format!(
            "{}{}{}",
            changes.text(*second),
            between.unwrap_or_default(),
            changes.text(*first)
        );
        let range = first.start_byte()..second.end_byte();
        let change = Change::one(Operator::SwapStatements, text, range, &swapped);
        changes.found.push(change);
    }
}

/// Whether a statement calls a function.
fn calls(changes: &Changes<'_>, statement: Node<'_>, function: &str) -> bool {
    let call = statement.named_child(0);
    let name = call.and_then(|it| it.child_by_field_name("function"));
    name.is_some_and(|it| changes.text(it) == function)
}

fn locks(changes: &mut Changes<'_>, block: Node<'_>) {
    let statements = neighbours(block);
    for (at, taken) in statements.iter().enumerate() {
        for (lock, unlock) in LOCKS {
            let released = { statements.iter().skip(at) }.find(|it| calls(changes, **it, unlock));
            if let Some(released) = released.filter(|_| calls(changes, *taken, lock)) {
                changes.replace_all(Operator::DropLock, &[(*taken, ";"), (*released, ";")]);
            }
        }
    }
}
