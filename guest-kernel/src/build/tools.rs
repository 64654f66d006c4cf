//! What a kernel build needs from the system. If something is missing, the error names it and the
//! command that installs it, before the build starts.

use std::path::Path;
use std::process::{Command, Stdio};

use super::BuildError;
use crate::cache::CacheError;

/// Programs, and the Debian packages that contain them.
const PROGRAMS: &[(&str, &str)] = &[
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
];

/// objtool reads objects with it.
const HEADER: (&str, &str) = ("gelf.h", "libelf-dev");

/// git is needed first of all, to identify the source.
pub(super) fn need_git() -> Result<(), BuildError> {
    if runs("git") {
        return Ok(());
    }
    Err(missing(&[("git", "git")]))
}

/// Everything that `make` runs.
pub(super) fn need_compiler() -> Result<(), BuildError> {
    let mut lacking: Vec<(&str, &str)> = PROGRAMS
        .iter()
        .copied()
        .filter(|(program, _)| !runs(program))
        .collect();
    let no_compiler = lacking.iter().any(|(program, _)| *program == "gcc");
    if no_compiler || !has_header(HEADER.0) {
        lacking.push(HEADER);
    }
    if lacking.is_empty() {
        Ok(())
    } else {
        Err(missing(&lacking))
    }
}

fn missing(lacking: &[(&str, &str)]) -> BuildError {
    let join = |part: fn(&(&str, &str)) -> String, with| {
        let parts: Vec<String> = lacking.iter().map(part).collect();
        parts.join(with)
    };
    BuildError::Tools {
        missing: join(|it| it.0.to_owned(), ", "),
        install: format!(
            "apt-get install --no-install-recommends {}",
            join(|it| it.1.to_owned(), " ")
        ),
    }
}

fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn has_header(name: &str) -> bool {
    Command::new("gcc")
        .args(["-E", "-include", name, "-x", "c", "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The versions of compiler and linker.
pub(super) fn versions() -> Result<String, BuildError> {
    let mut text = String::new();
    for program in ["gcc", "ld"] {
        let output = Command::new(program)
            .arg("--version")
            .output()
            .map_err(|error| match need_compiler() {
                Err(missing) => missing,
                Ok(()) => CacheError::new(Path::new(program), error).into(),
            })?;
        let output = String::from_utf8_lossy(&output.stdout);
        text.push_str(output.lines().next().unwrap_or_default());
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_all_that_is_missing_and_the_command() {
        let error = missing(&[("flex", "flex"), ("gelf.h", "libelf-dev")]);
        assert_eq!(
            error.to_string(),
            "building a kernel needs flex, gelf.h: install with \
             `apt-get install --no-install-recommends flex libelf-dev`"
        );
        assert!(!runs("no-such-program-of-unwindlab"));
        assert!(!has_header("no-such-header-of-unwindlab.h"));
    }
}
