//! What the documentation says is there is there: files, headings, commands, options, environment variables. No
//! machine is booted; `tests/sessions.rs` does that.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod common;
#[path = "common/markdown.rs"]
mod markdown;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{said, scratch, unwindlab};
use markdown::{Page, compare, files, root, session};

fn pages() -> Vec<Page> {
    let mut files = files();
    files.retain(|path| path.extension().is_some_and(|it| it == "md"));
    files.iter().map(|path| Page::read(path)).collect()
}

/// Fails with all that is wrong.
fn nothing(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// What stands between backticks outside of blocks.
fn spans(page: &Page) -> Vec<String> {
    let prose = page.prose();
    let mut parts = prose.split('`');
    let mut spans = Vec::new();
    while let (Some(_), Some(code)) = (parts.next(), parts.next()) {
        spans.push(code.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    spans
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let prose = page.prose();
        for link in prose.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.path.clone(),
                file => page.path.parent().unwrap().join(file),
            };
            let target = root().join(target);
            let place = page.path.display();
            if !target.exists() {
                wrong.push(format!("{place}: {link}: no such file"));
            } else if !heading.is_empty() && !headings(&target).contains(heading) {
                wrong.push(format!("{place}: {link}: no such heading"));
            }
        }
    }
    nothing(wrong);
}

/// The names of a page's headings in links.
fn headings(path: &Path) -> BTreeSet<String> {
    let prose = Page::read(path).prose();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let name = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        kept.collect::<String>()
    };
    headings.map(name).collect()
}

/// Folders that are made by building or running something.
const MADE: [&str; 2] = ["target", "unwindlab-out"];

/// Whether a code span is meant as a path of this repository, as opposed to one of the kernel's or the guest's: it
/// begins with a folder that is here, or names a Rust file.
fn is_path(span: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-/*<>".contains(c);
    let first = span.split('/').next().unwrap_or("");
    !span.is_empty()
        && span.chars().all(is_name)
        && !span.starts_with('/')
        && !MADE.contains(&first)
        && (span.ends_with(".rs") || span.contains('/') && root().join(first).exists())
}

#[test]
fn paths_in_backticks_exist() {
    let files = files();
    let ends_like = |path: &Path, span: &str| path.ends_with(span);
    let mut wrong = Vec::new();
    for page in pages() {
        for span in spans(&page).into_iter().filter(|it| is_path(it)) {
            // Of one with a placeholder, the folder.
            let is_fixed = |part: &&str| !part.contains(['*', '<']) && !part.starts_with("NAME");
            let fixed: Vec<&str> = span.split('/').take_while(is_fixed).collect();
            let fixed: PathBuf = fixed.iter().collect();
            let beside = root().join(page.path.parent().unwrap()).join(&fixed);
            let is_there = root().join(&fixed).exists()
                || beside.exists()
                || files.iter().any(|path| ends_like(path, &span));
            // `ID.patch`, `F001.md`: placeholders of another kind are written so.
            if !is_there && !span.contains("/ID.") {
                wrong.push(format!("{}: `{span}`", page.path.display()));
            }
        }
    }
    nothing(wrong);
}

/// Every command line of unwindlab in a page, without what the shell does with it.
fn command_lines(page: &Page) -> Vec<String> {
    let mut lines = spans(page);
    for block in page.blocks() {
        if ["sh", "console"].contains(&block.language.as_str()) {
            lines.extend(block.lines);
        }
    }
    let own = |line: &String| {
        let line = line.split(" #").next().unwrap();
        let begin = match line.find("unwindlab ") {
            // The package is called so too: `cargo test -p unwindlab`.
            Some(at) if line[..at].ends_with("-p ") => return None,
            Some(at) if at == 0 || line[..at].ends_with(' ') => at,
            _ => return None,
        };
        let line = &line[begin..];
        let end = line.find(['>', '|', ';']).unwrap_or(line.len());
        let line = line[..end].split(" &&").next().unwrap();
        Some(line.trim().to_owned())
    };
    lines.iter().filter_map(own).collect()
}

/// A word of a command line, with something in place of a placeholder.
fn concrete(word: &str) -> Option<String> {
    let word = word.trim_matches(['\'', '"']);
    match word {
        "..." => None,
        "N" | "SECONDS" => Some("1".to_owned()),
        "SEED:TRIAL" => Some("1:1".to_owned()),
        word if word.starts_with('[') || word.ends_with(']') => None,
        word => Some(word.to_owned()),
    }
}

#[test]
fn commands_and_options_exist() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for page in pages() {
        for line in command_lines(&page) {
            let words: Vec<String> = line
                .split_whitespace()
                .skip(1)
                .filter_map(concrete)
                .collect();
            let is_placeholder = |word: &String| ["COMMAND", "X"].contains(&word.as_str());
            if words.first().is_none_or(is_placeholder) || !seen.insert(words.clone()) {
                continue;
            }
            let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
            // What comes before it must be known, and nothing is done.
            arguments.push("--help");
            let output = unwindlab(&arguments);
            if !output.status.success() {
                wrong.push(format!(
                    "{}: {line}: {}",
                    page.path.display(),
                    said(&output)
                ));
            }
        }
    }
    assert!(seen.len() > 40, "only {} commands", seen.len());
    nothing(wrong);
}

#[test]
fn every_command_is_described() {
    let help = unwindlab(&["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let commands: BTreeSet<&str> = commands.filter(|it| *it != "help").collect();
    let page = Page::read(Path::new("docs/commands.md"));
    let prose = page.prose();
    let headings = prose.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(headings.collect::<BTreeSet<_>>(), commands);
}

#[test]
fn commands_that_need_no_machine_do_what_the_docs_show() {
    let folder = scratch("docs");
    let mut ran = 0;
    for page in pages() {
        for typed in session(&page) {
            if typed.needs_no_machine() {
                typed.check(&folder);
                ran += 1;
            }
        }
    }
    assert!(ran > 0);
    for command in [
        &["schema"][..],
        &["man"],
        &["completions", "bash"],
        &["completions", "fish"],
        &["completions", "zsh"],
        &["kernel", "list"],
        &["help", "run"],
    ] {
        let output = unwindlab(command);
        assert!(output.status.success(), "{command:?}: {}", said(&output));
        assert!(command[0] == "kernel" || output.stdout.len() > 1000);
    }
    let pages = folder.join("man");
    let name = pages.to_str().unwrap();
    assert_eq!(
        unwindlab(&["man", name]).status.code(),
        Some(2),
        "no folder"
    );
    fs::create_dir(&pages).unwrap();
    assert!(unwindlab(&["man", name]).status.success());
    for page in ["unwindlab.1", "unwindlab-run.1", "unwindlab-kernel-fetch.1"] {
        assert!(pages.join(page).is_file(), "{page}");
    }
    let none = unwindlab(&["kernel", "path", "path:/nonexistent"]);
    assert!(
        matches!(none.status.code(), Some(2 | 125)),
        "{}",
        said(&none)
    );
}

#[test]
fn scenarios_in_the_docs_are_right() {
    let folder = scratch("docs-scenarios");
    let mut checked = 0;
    for page in pages() {
        for block in page.blocks().iter().filter(|it| it.language == "yaml") {
            let Some(name) = block.lines[0].strip_prefix("name: ") else {
                continue;
            };
            let file = folder.join(format!("{name}.yaml"));
            fs::write(&file, block.lines.join("\n")).unwrap();
            // Scenarios are read before the kernel is looked for, and this one is none.
            let output = unwindlab(&[
                "run",
                "--kernel",
                "path:/nonexistent",
                file.to_str().unwrap(),
            ]);
            let told = said(&output);
            assert!(
                told.contains("/nonexistent"),
                "{}: {told}",
                page.path.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 1);
}

/// The variables of the first column of a page's tables, and those in its text.
fn documented() -> (BTreeSet<String>, BTreeSet<String>) {
    let page = Page::read(Path::new("docs/environment.md"));
    let is_variable = |word: &&str| {
        word.len() > 3
            && word
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let names = |text: &str| {
        let words = text.split('`').skip(1).step_by(2);
        let words = words
            .map(|word| word.split('=').next().unwrap())
            .filter(is_variable);
        words.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let rows = page.text.lines().filter(|line| line.starts_with("| `"));
    let read = rows
        .flat_map(|row| names(row.split('|').nth(1).unwrap()))
        .collect();
    (read, names(&page.text))
}

/// Variables that a crate reads for us.
const OF_CRATES: [&str; 3] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"];

#[test]
fn environment_variables_are_those_that_are_read() {
    let mut sources = String::new();
    for path in files() {
        let is_source = path.extension().is_some_and(|it| it == "rs") || path.starts_with(".ci");
        // Cargo's own variables.
        if is_source && !path.ends_with("build.rs") && path != Path::new("tests/docs.rs") {
            sources.push_str(&fs::read_to_string(root().join(path)).unwrap());
        }
    }
    let (tables, mentioned) = documented();
    let quoted = |name: &str| sources.contains(&format!("\"{name}\""));
    let exported = |name: &str| sources.contains(&format!("export {name}="));
    let unread = mentioned
        .iter()
        .filter(|name| !quoted(name) && !exported(name) && !OF_CRATES.contains(&name.as_str()));
    nothing(
        unread
            .map(|name| format!("{name} is read nowhere"))
            .collect(),
    );

    // What is asked for by its name, and every name of ours, which a constant may hold.
    let literal = |rest: &str| rest.split('"').next().unwrap().to_owned();
    let mut read: BTreeSet<String> = BTreeSet::new();
    for call in ["env::var(\"", "env::var_os(\"", "variable(\"", "set(\""] {
        read.extend(sources.split(call).skip(1).map(literal));
    }
    let constants = sources.split("const ").skip(1);
    let strings = constants.filter_map(|it| it.split_once(": &str = \""));
    let strings =
        strings.filter(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
    let ours = strings.map(|(_, value)| literal(value));
    read.extend(ours.filter(|it| it.starts_with("UNWINDLAB_")));
    let is_variable = |name: &&String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let unknown = read.iter().filter(is_variable);
    let unknown = unknown.filter(|name| !mentioned.contains(*name));
    nothing(
        unknown
            .map(|name| format!("{name} is not in docs/environment.md"))
            .collect(),
    );
    assert!(tables.len() > 8, "{tables:?}");
}

#[test]
fn the_readme_lists_every_finding_and_counts_the_mutants() {
    let readme = Page::read(Path::new("README.md")).text;
    let files = files();
    let findings = files
        .iter()
        .filter(|path| path.starts_with("docs/findings"));
    let names = findings.filter_map(|path| path.file_stem().unwrap().to_str());
    let mut listed = 0;
    for id in names.filter(|name| name.starts_with('F')) {
        let row = format!("| [{id}](docs/findings/{id}.md) |");
        assert!(readme.contains(&row), "{row}");
        let fix = format!("guest-kernel/patches/fixes/{id}.patch");
        assert!(root().join(&fix).exists(), "{fix}");
        listed += 1;
    }
    assert!(listed > 0);
    let mutants = files
        .iter()
        .filter(|path| path.starts_with("guest-kernel/patches/mutants"));
    let mutants = format!("[{} mutants]", mutants.count());
    assert!(readme.contains(&mutants), "{mutants}");
}

#[test]
fn sessions_are_compared_line_by_line() {
    let shown = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let same = |doc: &str, printed: &str| compare(&shown(doc), printed).is_ok();
    assert!(same(
        "pass  a  20 samples  0.4 s",
        "pass   a  21 samples 1.25 s\n"
    ));
    assert!(same("...\nb\n...", "a\nb\nc\n"));
    assert!(same("a\n...", "a\n"));
    assert!(same("C4 ..., at f+0x1", "C4 violated, at f+0x5d"));
    assert!(same(
        "on ..., KVM host ...",
        "on 7.3.4+deb13, KVM host native (x)"
    ));
    assert!(!same("b\n...", "a\nb\n"), "the first line is another");
    assert!(!same("a", "a\nb\n"), "more was printed");
    assert!(
        !same("C4 violated", "C7 violated"),
        "a number that is part of a word"
    );
    assert!(!same("at f+0x1 ... done", "at f+0x5d not"));
    assert!(!same("...\nx", "a\n"));
}
