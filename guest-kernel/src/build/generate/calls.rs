//! Changes of calls: atomic operations that become plain ones.

use tree_sitter::Node;

use super::change::Operator;
use super::operators::{Changes, is_whole};

/// Adds the changes of a node that is a call.
pub(super) fn change(changes: &mut Changes<'_>, node: Node<'_>) {
    if node.kind() != "call_expression" || !is_whole(node) {
        return;
    }
    let function = node.child_by_field_name("function");
    let arguments = node.child_by_field_name("arguments");
    let (Some(function), Some(arguments)) = (function, arguments) else {
        return;
    };
    let mut cursor = arguments.walk();
    let arguments = arguments.named_children(&mut cursor);
    let arguments: Vec<&str> = arguments.map(|it| changes.text(it)).collect();
    if let Some((operator, with)) = weaker(changes.text(function), &arguments) {
        changes.replace(operator, node, &with);
    }
}

/// What a call becomes whose effect stays but is not atomic.
fn weaker(function: &str, arguments: &[&str]) -> Option<(Operator, String)> {
    let with = match (function, arguments) {
        ("READ_ONCE", [value]) => return Some((Operator::DropOnce, format!("({value})"))),
        ("WRITE_ONCE", [to, value]) => {
            return Some((Operator::DropOnce, format!("(({to}) = ({value}))")));
        }
        ("atomic_long_fetch_or", [bits, of]) => fetched(of, &format!("| ({bits})")),
        ("atomic_long_fetch_andnot", [bits, of]) => fetched(of, &format!("& ~({bits})")),
        ("atomic_long_or", [bits, of]) => set(of, &format!("| ({bits})")),
        ("atomic_long_andnot", [bits, of]) => set(of, &format!("& ~({bits})")),
        ("atomic_long_try_cmpxchg", [of, _, value]) => {
            format!("({{ atomic_long_set({of}, {value}); true; }})")
        }
        ("try_cmpxchg", [of, _, value]) => format!("({{ WRITE_ONCE(*({of}), {value}); true; }})"),
        ("clear_bit", [bit, of]) => format!("__clear_bit({bit}, {of})"),
        ("set_bit", [bit, of]) => format!("__set_bit({bit}, {of})"),
        _ => return None,
    };
    Some((Operator::WeakenAtomic, with))
}

/// Reads, writes, and returns what was read.
fn fetched(of: &str, change: &str) -> String {
    format!("({{ long was = atomic_long_read({of}); atomic_long_set({of}, was {change}); was; }})")
}

fn set(of: &str, change: &str) -> String {
    format!("atomic_long_set({of}, atomic_long_read({of}) {change})")
}
