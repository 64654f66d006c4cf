//! A program without frame pointers, from C: compiled by this machine's gcc, assembled and linked by
//! Debian's newest binutils, which describe it by an SFrame section.
//!
//! Its stacks are known by construction: each function is called at one place. The compiler's text
//! gets a label behind each call, which the assembler would refuse a second time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSymbol, SymbolKind};

use super::archive::ArchiveError;
use super::binutils::{self, Binutils, Suite};
use crate::cache::{Cache, CacheError};
use crate::child;
use crate::progress::Progress;

const SOURCE: &str = include_str!("program.c");
/// Behind the name of a function: the label of where it returns to.
const RETURN: &str = "_return";
const ENTRY: &str = "_start";
const BEGIN: &str = "c_begin";
/// Apart from the agent's own code, which is linked for an address below.
const ADDRESS: &str = "-Ttext-segment=0x10000000";
/// Without the functions and instrumentation that a distribution's gcc may add.
const COMPILE: [&str; 12] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fasynchronous-unwind-tables",
    "-ffreestanding",
    "-fno-pic",
    "-fno-pie",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fno-optimize-sibling-calls",
    "-fno-jump-tables",
    "-fno-stack-clash-protection",
    "-S",
];

/// A program and where its functions are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CProgram {
    /// The ELF file: static, for fixed addresses.
    pub elf: Vec<u8>,
    /// An instruction that it executes once, before it calls down.
    pub begin: u64,
    /// In order of their addresses.
    pub functions: Vec<CFunction>,
}

/// A function of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CFunction {
    /// Its name.
    pub name: String,
    /// Address of its first byte.
    pub start: u64,
    /// Address behind it.
    pub end: u64,
    /// The return addresses of its callers, innermost first.
    pub callers: Vec<u64>,
}

/// Why there is no such program.
#[derive(Debug, thiserror::Error)]
pub enum CProgramError {
    /// The assembler and linker.
    #[error("binutils: {0}")]
    Binutils(#[from] ArchiveError),
    /// No room for it.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A tool cannot be run.
    #[error("cannot run {tool}: {source}")]
    Run {
        /// Its name.
        tool: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A tool fails or warns.
    #[error("{tool} says: {said}")]
    Refused {
        /// Its name.
        tool: &'static str,
        /// What it says.
        said: String,
    },
    /// The result is not what was asked for.
    #[error("the program that was made cannot be read: {0}")]
    Elf(String),
}

/// Makes it.
///
/// # Errors
/// [`CProgramError`].
pub fn c_program(cache: &Cache, progress: &dyn Progress) -> Result<CProgram, CProgramError> {
    let tools = binutils::binutils(cache, Suite::Sid, progress)?;
    let scratch = cache.scratch()?;
    make(&tools, scratch.path())
}

fn make(tools: &Binutils, folder: &Path) -> Result<CProgram, CProgramError> {
    let [source, text, object, file] =
        ["program.c", "program.s", "program.o", "program"].map(|name| folder.join(name));
    let files = |source| CProgramError::Run {
        tool: "the file system",
        source,
    };
    fs::write(&source, SOURCE).map_err(files)?;
    let mut gcc = Command::new("gcc");
    child::end_with_us(&mut gcc);
    run("gcc", gcc.args(COMPILE).arg("-o").args([&text, &source]))?;
    let compiled = fs::read_to_string(&text).map_err(files)?;
    fs::write(&text, with_labels(&compiled)).map_err(files)?;
    let mut assembler = tools.assembler();
    let assembler = assembler.arg("--gsframe").arg("-o").args([&object, &text]);
    run("as", assembler)?;
    let mut linker = tools.linker();
    let linker = linker.args(["-static", "-nostdlib", "-z", "noexecstack", ADDRESS, "-e"]);
    run("ld", linker.args([ENTRY, "-o"]).args([&file, &object]))?;
    read(fs::read(&file).map_err(files)?)
}

/// A warning is an error: the assembler warns of functions that it cannot describe.
fn run(tool: &'static str, command: &mut Command) -> Result<(), CProgramError> {
    let output = command.output();
    let output = output.map_err(|source| CProgramError::Run { tool, source })?;
    if output.status.success() && output.stderr.is_empty() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CProgramError::Refused {
        tool,
        said: said.trim().replace('\n', "; "),
    })
}

/// A label behind each call.
fn with_labels(assembly: &str) -> String {
    let mut labelled = String::new();
    for line in assembly.lines() {
        labelled.push_str(line);
        labelled.push('\n');
        if let Some(name) = line.trim_start().strip_prefix("call\t") {
            labelled.push_str(&format!("{name}{RETURN}:\n"));
        }
    }
    labelled
}

fn read(elf: Vec<u8>) -> Result<CProgram, CProgramError> {
    let bad = |what: String| CProgramError::Elf(what);
    let file = object::File::parse(elf.as_slice()).map_err(|e| bad(e.to_string()))?;
    let mut functions = Vec::new();
    let mut returns = BTreeMap::new();
    let mut begin = None;
    for symbol in file.symbols() {
        let name = symbol.name().unwrap_or_default();
        if symbol.kind() == SymbolKind::Text && symbol.size() > 0 {
            let (start, size) = (symbol.address(), symbol.size());
            functions.push((name.to_owned(), start, start.saturating_add(size)));
        } else if name == BEGIN {
            begin = Some(symbol.address());
        } else if let Some(name) = name.strip_suffix(RETURN) {
            returns.insert(name.to_owned(), symbol.address());
        }
    }
    functions.sort_by_key(|it| it.1);
    let callers = |name: &str| {
        let mut callers = Vec::new();
        let mut name = name;
        while name != ENTRY {
            let address = *returns.get(name)?;
            let within = |it: &&(String, u64, u64)| (it.1..it.2).contains(&address);
            name = &functions.iter().find(within)?.0;
            callers.push(address);
            if callers.len() > functions.len() {
                return None;
            }
        }
        Some(callers)
    };
    let function = |(name, start, end): &(String, u64, u64)| {
        Ok(CFunction {
            name: name.clone(),
            start: *start,
            end: *end,
            callers: callers(name).ok_or_else(|| bad(format!("nothing calls {name}")))?,
        })
    };
    let functions = functions.iter().map(function);
    let functions = functions.collect::<Result<_, CProgramError>>()?;
    let begin = begin.ok_or_else(|| bad(format!("no {BEGIN}")))?;
    Ok(CProgram {
        elf,
        begin,
        functions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_follows_each_call() {
        assert_eq!(
            with_labels("f:\n\tcall\tg\n\tret"),
            "f:\n\tcall\tg\ng_return:\n\tret\n"
        );
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        assert!(matches!(read(b"no".to_vec()), Err(CProgramError::Elf(_))));
    }
}
