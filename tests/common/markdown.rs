//! The repository's Markdown: its files, blocks and code spans, and sessions at a terminal in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the repository, relative to it.
#[allow(dead_code, reason = "not every test program needs it")]
pub fn files() -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|it| it.to_str()).unwrap_or("");
            if [".git", "target", "unwindlab-out"].contains(&name) {
                continue;
            }
            if path.is_dir() {
                below(&path, found);
            } else {
                found.push(path.strip_prefix(root()).expect("below it").to_owned());
            }
        }
    }
    let mut found = Vec::new();
    below(root(), &mut found);
    found.sort();
    found
}

/// A Markdown file.
pub struct Page {
    /// Relative to the repository.
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block.
pub struct Block {
    /// What stands behind the fence: `console`, `sh`, `yaml`.
    pub language: String,
    /// The number of its first line.
    pub line: usize,
    pub lines: Vec<String>,
}

impl Page {
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(root().join(path));
        Self {
            path: path.to_owned(),
            text: text.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        }
    }

    pub fn blocks(&self) -> Vec<Block> {
        self.parts().1
    }

    /// The text with its blocks left out, line by line.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub fn prose(&self) -> String {
        self.parts().0
    }

    fn parts(&self) -> (String, Vec<Block>) {
        let (mut prose, mut blocks) = (String::new(), Vec::new());
        let mut open: Option<(Block, usize)> = None;
        for (line, number) in self.text.lines().zip(1..) {
            let fence = line.trim_start().strip_prefix("```");
            match (fence, &mut open) {
                (Some(language), None) => {
                    let indent = line.len() - line.trim_start().len();
                    let block = Block {
                        language: language.trim().to_owned(),
                        line: number + 1,
                        lines: Vec::new(),
                    };
                    open = Some((block, indent));
                }
                (Some(_), Some(_)) => blocks.extend(open.take().map(|(block, _)| block)),
                (None, Some((block, indent))) => block.push(line.get(*indent..).unwrap_or("")),
                (None, None) => prose.push_str(line),
            }
            prose.push('\n');
        }
        assert!(open.is_none(), "{}: an open block", self.path.display());
        (prose, blocks)
    }
}

impl Block {
    /// Adds a line. One that goes on after a `\\` is one with the next; an empty one keeps the numbers.
    fn push(&mut self, line: &str) {
        if let Some(last) = self.lines.iter_mut().rfind(|it| !it.is_empty())
            && let Some(begin) = last.strip_suffix('\\')
        {
            *last = format!("{begin}{}", line.trim_start());
            self.lines.push(String::new());
        } else {
            self.lines.push(line.to_owned());
        }
    }
}

/// A command of a session, and what must come of it.
#[derive(Debug)]
pub struct Typed {
    pub command: String,
    /// `FILE:LINE`.
    pub place: String,
    pub output: Vec<String>,
    pub code: i32,
}

/// The commands of a page's console blocks: `$ COMMAND`, its output, and `$ echo $?` with an exit code that is
/// not 0.
pub fn session(page: &Page) -> Vec<Typed> {
    let mut session: Vec<Typed> = Vec::new();
    for block in page.blocks() {
        if block.language != "console" {
            continue;
        }
        let mut lines = block.lines.iter().zip(block.line..);
        while let Some((line, number)) = lines.next() {
            let place = format!("{}:{number}", page.path.display());
            match line.strip_prefix("$ ") {
                Some("echo $?") => {
                    let code = lines.next().and_then(|(code, _)| code.parse().ok());
                    let code = code.unwrap_or_else(|| panic!("{place}: no exit code"));
                    let last = session.last_mut();
                    last.unwrap_or_else(|| panic!("{place}: of what")).code = code;
                }
                Some(command) => session.push(Typed {
                    command: command.to_owned(),
                    place,
                    output: Vec::new(),
                    code: 0,
                }),
                None => {
                    let last = session.last_mut();
                    let last = last.unwrap_or_else(|| panic!("{place}: output of what"));
                    last.output.push(line.clone());
                }
            }
        }
    }
    session
}

impl Typed {
    /// Whether it is unwindlab's, and boots no machine.
    pub fn needs_no_machine(&self) -> bool {
        let words: Vec<&str> = self.command.split_whitespace().collect();
        match words.as_slice() {
            [
                "unwindlab",
                "list" | "schema" | "doctor" | "man" | "completions" | "help",
                ..,
            ] => true,
            ["unwindlab", "kernel", "list" | "path", ..] => true,
            ["unwindlab", rest @ ..] => rest.contains(&"--help") || rest.contains(&"--version"),
            _ => false,
        }
    }

    /// Runs it in a folder, by a shell, and compares.
    pub fn check(&self, folder: &Path) {
        let program = Path::new(env!("CARGO_BIN_EXE_unwindlab"));
        let programs = program.parent().expect("a folder").display();
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args(["-c", &self.command])
            .current_dir(folder)
            .env("PATH", format!("{programs}:{path}"))
            .output()
            .expect("there is a shell");
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if !matches!(output.status.code(), Some(0 | 1)) {
            said.push_str(&errors);
        }
        let context = format!("{}: $ {}\n{said}\n{errors}", self.place, self.command);
        assert_eq!(output.status.code(), Some(self.code), "{context}");
        if let Err(line) = compare(&self.output, &said) {
            panic!("not printed: {line}\n{context}");
        }
    }
}

/// Whether a session's output is as shown: line by line, but for numbers, blanks and `...`; the first line shown
/// that was not printed.
pub fn compare(shown: &[String], printed: &str) -> Result<(), String> {
    let words =
        |line: &str| without_numbers(&line.split_whitespace().collect::<Vec<_>>().join(" "));
    let printed: Vec<String> = printed
        .lines()
        .map(words)
        .filter(|it| !it.is_empty())
        .collect();
    let (mut at, mut skips) = (0, false);
    for line in shown {
        let wanted = words(line);
        if wanted.is_empty() {
            continue;
        }
        if wanted == "..." {
            skips = true;
            continue;
        }
        let rest = printed.get(at..).unwrap_or_default();
        let rest = rest.iter().take(if skips { usize::MAX } else { 1 });
        let found = { rest }.position(|it| is_like(&wanted, it));
        at += found.ok_or_else(|| line.clone())? + 1;
        skips = false;
    }
    match printed.get(at) {
        Some(more) if !skips => Err(format!("(nothing, where there is {more:?})")),
        _ => Ok(()),
    }
}

/// Whether a line is like one in which `...` stands for anything.
fn is_like(wanted: &str, line: &str) -> bool {
    let mut parts = wanted.split("...");
    let first = parts.next().unwrap_or("").trim_end();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts.map(str::trim) {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = rest.get(at + part.len()..).unwrap_or("");
        last = Some(part);
    }
    rest.is_empty() || last == Some("") || last.is_some_and(|last| rest.ends_with(last))
}

/// A line with each number, decimal or hexadecimal, replaced by one and the same; not those that are part of a word.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    let mut in_word = false;
    while let Some(c) = rest.chars().next() {
        let length = match rest.strip_prefix("0x") {
            _ if in_word => 0,
            Some(hex) => {
                2 + hex
                    .find(|c: char| !c.is_ascii_hexdigit())
                    .unwrap_or(hex.len())
            }
            None => {
                let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
                let number = rest.get(..end.unwrap_or(rest.len())).unwrap_or("");
                let number = number.trim_end_matches('.');
                if c.is_ascii_digit() { number.len() } else { 0 }
            }
        };
        if length > 0 {
            out.push('#');
            rest = rest.get(length..).unwrap_or("");
            in_word = false;
            continue;
        }
        in_word = c.is_alphanumeric() || c == '_';
        out.push(c);
        rest = rest.get(c.len_utf8()..).unwrap_or("");
    }
    out
}
