//! A source file of the kernel as a syntax tree.

use tree_sitter::{Node, Parser, Tree, TreeCursor};

/// Words of the kernel's that a C grammar takes for names of types. Blanks stand for them while the text is parsed.
const ATTRIBUTES: [&str; 12] = [
    "__always_inline",
    "__init",
    "__sched",
    "__user",
    "__weak",
    "__visible",
    "__cpuidle",
    "__percpu",
    "__rcu",
    "noinline",
    "noinstr",
    "asmlinkage",
];

/// A file and its syntax tree; both have the same places.
pub(super) struct Source {
    pub text: String,
    tree: Tree,
}

impl Source {
    /// Parses a file. Returns nothing where there is no grammar for it.
    pub fn parse(text: String) -> Option<Self> {
        let mut parser = Parser::new();
        parser.set_language(&tree_sitter_c::LANGUAGE.into()).ok()?;
        let tree = parser.parse(without_attributes(&text), None)?;
        Some(Self { text, tree })
    }

    /// The whole file.
    pub fn root(&self) -> Node<'_> {
        self.tree.root_node()
    }

    /// Whether the grammar understood all of it.
    pub fn is_whole(&self) -> bool {
        !self.root().has_error()
    }

    /// What the file defines: functions, and macros with a body.
    pub fn definitions(&self) -> Vec<Definition<'_>> {
        let mut found = Vec::new();
        each(self.root(), &mut |node| {
            let of = match node.kind() {
                "function_definition" => node
                    .child_by_field_name("declarator")
                    .and_then(function_name)
                    .zip(node.child_by_field_name("body")),
                "preproc_def" | "preproc_function_def" => node
                    .child_by_field_name("name")
                    .zip(node.child_by_field_name("value")),
                _ => None,
            };
            if let Some((name, body)) = of {
                found.push(Definition {
                    name: self.of(name),
                    body,
                });
            }
        });
        found
    }

    /// The text of a node.
    pub fn of(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// The line in which a place is, from 1, and its text.
    pub fn line(&self, at: usize) -> (usize, &str) {
        let before = self.text.get(..at).unwrap_or_default();
        let number = before.matches('\n').count();
        (
            number + 1,
            self.text.lines().nth(number).unwrap_or_default(),
        )
    }
}

/// A function, or a macro.
#[derive(Debug, Clone, Copy)]
pub(super) struct Definition<'a> {
    pub name: &'a str,
    /// What is between its braces; what a macro stands for.
    pub body: Node<'a>,
}

impl Definition<'_> {
    /// Whether the grammar has not looked into it.
    pub fn is_macro(&self) -> bool {
        self.body.kind() == "preproc_arg"
    }
}

/// The name in a declarator such as `*name(int a)`.
fn function_name(declarator: Node<'_>) -> Option<Node<'_>> {
    let mut node = declarator;
    while node.kind() != "identifier" {
        node = node.child_by_field_name("declarator")?;
    }
    Some(node)
}

/// Calls `look` for a node and all below it, in the order of the text.
pub(super) fn each<'a>(node: Node<'a>, look: &mut dyn FnMut(Node<'a>)) {
    fn below<'a>(cursor: &mut TreeCursor<'a>, look: &mut dyn FnMut(Node<'a>)) {
        look(cursor.node());
        if cursor.goto_first_child() {
            below(cursor, look);
            while cursor.goto_next_sibling() {
                below(cursor, look);
            }
            cursor.goto_parent();
        }
    }
    below(&mut node.walk(), look);
}

/// The text with blanks in the place of attributes.
fn without_attributes(text: &str) -> String {
    let is_word = |it: char| it == '_' || it.is_ascii_alphanumeric();
    let mut blanked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        let (before, word_on) = rest.split_at(start);
        let end = word_on.find(|it| !is_word(it)).unwrap_or(word_on.len());
        let (word, behind) = word_on.split_at(end);
        blanked.push_str(before);
        match ATTRIBUTES.contains(&word) {
            true => blanked.push_str(&" ".repeat(word.len())),
            false => blanked.push_str(word),
        }
        rest = behind;
    }
    blanked.push_str(rest);
    blanked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_functions_and_macros() {
        let text = "#define TWICE(x)\t(2 * (x))\n\
                    static __always_inline void reset(void)\n{\n\tx = 0;\n}\n\
                    struct a *\nmake(int n)\n{\n\tfor_each(a, b) {\n\t\tf(a);\n\t}\n\treturn 0;\n}\n";
        let source = Source::parse(text.to_owned()).unwrap();
        let definitions = source.definitions();
        let names: Vec<(&str, bool)> = { definitions.iter() }
            .map(|it| (it.name, it.is_macro()))
            .collect();
        assert_eq!(names, [("TWICE", true), ("reset", false), ("make", false)]);
        let at = text.find("x = 0").unwrap();
        assert_eq!(source.line(at), (4, "\tx = 0;"));
    }

    #[test]
    fn attributes_are_words_of_their_own() {
        let blanked = without_attributes("a__init __init(b) noinstr");
        assert_eq!(blanked, "a__init       (b)        ");
    }
}
