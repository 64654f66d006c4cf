//! The C programs that show findings without unwindlab, compiled by this machine's gcc.

use std::fs;
use std::io;
use std::process::Command;

use include_dir::{Dir, include_dir};

use crate::cache::{Cache, CacheError};
use crate::child;

static SOURCES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../reproducers");
/// The header of the lab client.
const HEADER: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/client/files/include/linux/unwindlab.h"
));
/// What a program includes that needs the lab client.
const CLIENT: &str = "<linux/unwindlab.h>";

/// Why there is no such program.
#[derive(Debug, thiserror::Error)]
pub enum ReproducerError {
    /// No program has this name.
    #[error("no program {0:?}")]
    Unknown(String),
    /// No room for it.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// gcc cannot be run, or a file cannot be written.
    #[error("cannot compile {name}.c: {source}")]
    Run {
        /// The program's name.
        name: String,
        /// The error.
        source: io::Error,
    },
    /// gcc refuses it, or the C library cannot be linked statically.
    #[error("cannot compile {name}.c: gcc says: {said}")]
    Refused {
        /// The program's name.
        name: String,
        /// What it says.
        said: String,
    },
}

/// The text of a program (`f001`).
#[must_use]
pub fn source(name: &str) -> Option<&'static str> {
    SOURCES.get_file(format!("{name}.c"))?.contents_utf8()
}

/// The names of all programs.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let stem = |file: &'static include_dir::File<'_>| file.path().file_stem()?.to_str();
    let mut names: Vec<&str> = SOURCES.files().filter_map(stem).collect();
    names.sort_unstable();
    names
}

/// Whether a program tells the lab client what to do.
#[must_use]
pub fn needs_client(name: &str) -> bool {
    source(name).is_some_and(|it| it.contains(CLIENT))
}

/// The ELF file of a program: static, without symbols.
///
/// # Errors
/// [`ReproducerError`].
pub fn compile(name: &str, cache: &Cache) -> Result<Vec<u8>, ReproducerError> {
    let text = source(name).ok_or_else(|| ReproducerError::Unknown(name.to_owned()))?;
    let failed = |source| ReproducerError::Run {
        name: name.to_owned(),
        source,
    };
    let scratch = cache.scratch()?;
    let folder = scratch.path();
    let include = folder.join("include/linux");
    fs::create_dir_all(&include).map_err(failed)?;
    fs::write(include.join("unwindlab.h"), HEADER).map_err(failed)?;
    let (file, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&file, text).map_err(failed)?;
    let mut gcc = Command::new("gcc");
    child::end_with_us(&mut gcc);
    gcc.args(["-O2", "-static", "-s", "-I"])
        .arg(folder.join("include"))
        .arg("-o")
        .args([&program, &file]);
    let output = gcc.output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(ReproducerError::Refused {
            name: name.to_owned(),
            said: said.trim().replace('\n', "; "),
        });
    }
    fs::read(&program).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_compiles_and_fits_a_message() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        for name in names() {
            let elf = compile(name, &cache).unwrap();
            assert!(elf.starts_with(b"\x7fELF"), "{name}");
            // The agent's mailbox has a MiB.
            assert!(elf.len() < 1_000_000, "{name}: {} bytes", elf.len());
        }
        assert!(compile("f999", &cache).is_err());
    }

    #[test]
    fn those_that_need_the_client_say_so() {
        let with: Vec<&str> = { names().into_iter() }
            .filter(|it| needs_client(it))
            .collect();
        assert_eq!(with, ["f002", "f003", "f005", "f006", "f012"]);
    }
}
