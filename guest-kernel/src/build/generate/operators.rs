//! All changes of a function, one at a time.

use tree_sitter::Node;

use super::change::{Change, Operator};
use super::source::{Source, each};
use super::{calls, statements, values};

/// Collects changes of one text.
pub(super) struct Changes<'a> {
    pub source: &'a Source,
    pub found: Vec<Change>,
}

impl<'a> Changes<'a> {
    /// All changes of a node and what is below it, in the order of the text. What the grammar does not understand stays
    /// as it is.
    pub fn of(source: &'a Source, node: Node<'a>) -> Vec<Change> {
        let mut changes = Self {
            source,
            found: Vec::new(),
        };
        each(node, &mut |node| {
            statements::change(&mut changes, node);
            values::change(&mut changes, node);
            calls::change(&mut changes, node);
        });
        let mut found = changes.found;
        found.sort_by_key(|it| (it.start(), it.operator));
        found.dedup_by(|a, b| a.apply(&source.text) == b.apply(&source.text));
        found
    }

    /// The text of a node.
    pub fn text(&self, node: Node<'_>) -> &'a str {
        self.source.of(node)
    }

    /// A node becomes another text.
    pub fn replace(&mut self, operator: Operator, node: Node<'_>, with: &str) {
        if self.text(node) == with {
            return;
        }
        let change = Change::one(operator, &self.source.text, node.byte_range(), with);
        self.found.push(change);
    }

    /// A change that consists of several.
    pub fn replace_all(&mut self, operator: Operator, nodes: &[(Node<'_>, &str)]) {
        let edits = nodes
            .iter()
            .map(|(node, with)| (node.byte_range(), (*with).to_owned()));
        let change = Change::many(operator, &self.source.text, edits.collect());
        self.found.push(change);
    }
}

/// Whether a node is whole: the grammar understood all of it.
pub(super) fn is_whole(node: Node<'_>) -> bool {
    !node.has_error() && !node.is_missing()
}
