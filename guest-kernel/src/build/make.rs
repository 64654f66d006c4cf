//! Runs `make`: from a tree and a configuration to a vmlinux.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use super::BuildError;
use super::config::{self, Fragment};
use super::workspace::Workspace;
use crate::cache::{At, CacheError};
use crate::child;
use crate::progress::Progress;

/// Fixes what a build writes into the image about itself, so that builds are reproducible.
const FIXED: &[(&str, &str)] = &[
    ("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970"),
    ("KBUILD_BUILD_USER", "unwindlab"),
    ("KBUILD_BUILD_HOST", "unwindlab"),
    ("KBUILD_BUILD_VERSION", "1"),
    ("LC_ALL", "C"),
];

/// Variables that would change the build.
const REMOVED: &[&str] = &[
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "ARCH",
    "CROSS_COMPILE",
    "KBUILD_OUTPUT",
    "KCFLAGS",
    "KCPPFLAGS",
    "KAFLAGS",
    "LLVM",
    "W",
    "V",
    "O",
    "C",
    "INSTALL_PATH",
];

/// Number of lines of the log that are shown if a build fails.
const SHOWN: usize = 20;

/// Builds the workspace's tree with this configuration, and returns the path of the vmlinux.
pub(super) fn vmlinux(
    workspace: &Workspace,
    fragments: &[Fragment],
    what: &str,
    progress: &dyn Progress,
) -> Result<PathBuf, BuildError> {
    let make = Make {
        src: workspace.folders().src(),
        obj: workspace.folders().obj(fragments),
        what,
        progress,
    };
    fs::create_dir_all(&make.obj).at(&make.obj)?;
    progress.step(&format!("configuring {what}"));
    configure(&make, fragments)?;
    progress.step(&format!("compiling {what}"));
    make.run("vmlinux")?;
    Ok(make.obj.join("vmlinux"))
}

/// Writes the `.config`. If it is the same as before, the file stays untouched, so `make` compiles
/// nothing because of it.
fn configure(make: &Make<'_>, fragments: &[Fragment]) -> Result<(), BuildError> {
    let asked = make.obj.join("asked.config");
    let text = config::merged(fragments);
    fs::write(&asked, &text).at(&asked)?;
    make.run("allnoconfig")?;
    let path = make.obj.join(".config");
    let got = fs::read_to_string(&path).at(&path)?;
    config::check(fragments, &got)
}

/// The two folders of a build.
struct Make<'a> {
    src: PathBuf,
    obj: PathBuf,
    what: &'a str,
    progress: &'a dyn Progress,
}

impl Make<'_> {
    fn run(&self, target: &'static str) -> Result<(), BuildError> {
        let log = self.obj.join("build.log");
        let output = File::create(&log).at(&log)?;
        let errors = output.try_clone().at(&log)?;
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new("make");
        command
            .arg("--silent")
            .arg("--directory")
            .arg(&self.src)
            .arg(assignment("O", &self.obj))
            .arg("ARCH=x86_64")
            .arg(format!("--jobs={jobs}"))
            .arg(assignment(
                "KCONFIG_ALLCONFIG",
                &self.obj.join("asked.config"),
            ))
            .arg(target)
            .envs(FIXED.iter().copied())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        for variable in REMOVED {
            command.env_remove(variable);
        }
        child::end_with_us(&mut command);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::Interrupted => BuildError::Stopped,
            _ => CacheError::new(Path::new("make"), error).into(),
        };
        let mut child = command.spawn().map_err(failed)?;
        let status = child::wait(&mut child, self.progress).map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        let text = fs::read(&log).at(&log)?;
        let text = String::from_utf8_lossy(&text);
        if text.contains("No space left on device") {
            return Err(CacheError::NoSpace(self.obj.clone()).into());
        }
        // The next build must not overwrite it.
        let kept = self.obj.join("failed.log");
        let mut file = File::create(&kept).at(&kept)?;
        file.write_all(text.as_bytes()).at(&kept)?;
        Err(BuildError::Compile {
            what: self.what.to_owned(),
            target,
            lines: telling(&below_tree(&text)),
            log: kept,
        })
    }
}

fn assignment(name: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(name);
    text.push("=");
    text.push(path);
    text
}

/// The log with file names relative to the source tree instead of to the objects.
fn below_tree(log: &str) -> String {
    let line = |line: &str| {
        let line = line.strip_prefix("../").unwrap_or(line);
        // `In file included from ../FILE`, `[../scripts/Makefile.build:289: ...]`.
        line.replace(" ../", " ").replace("[../", "[") + "\n"
    };
    log.lines().map(line).collect()
}

/// The lines that say why the build failed: from the first error on, without make's own summary.
fn telling(log: &str) -> String {
    let is_error = |line: &&str| {
        [": error:", ": fatal error:", "undefined reference", "*** "]
            .iter()
            .any(|mark| line.contains(mark))
            || line.starts_with("ld: ")
            || line.starts_with("error:")
    };
    let lines: Vec<&str> = log.lines().collect();
    let first = lines
        .iter()
        .position(is_error)
        // The line before names the function.
        .map_or(lines.len().saturating_sub(SHOWN), |at| at.saturating_sub(1));
    let shown: Vec<String> = lines
        .iter()
        .skip(first)
        .filter(|line| !line.starts_with("make"))
        .take(SHOWN)
        .map(|line| format!("  {line}"))
        .collect();
    if shown.is_empty() {
        return log
            .lines()
            .map(|line| format!("  {line}"))
            .collect::<Vec<_>>()
            .join("\n");
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_compilers_lines() {
        let log = "warning: something\n\
                   ../kernel/unwind/deferred.c: In function 'get_cookie':\n\
                   ../kernel/unwind/deferred.c:93:9: error: 'cn' undeclared\n\
                   \x20  93 |         cn = 1;\n\
                   make[4]: *** [../scripts/Makefile.build:289: kernel/unwind/deferred.o] Error 1\n\
                   make[3]: *** [../scripts/Makefile.build:544: kernel/unwind] Error 2\n";
        assert_eq!(
            telling(&below_tree(log)),
            "  kernel/unwind/deferred.c: In function 'get_cookie':\n  \
             kernel/unwind/deferred.c:93:9: error: 'cn' undeclared\n     93 |         cn = 1;"
        );
        assert_eq!(
            telling("make[1]: *** No rule to make target 'x'.  Stop.\n"),
            "  make[1]: *** No rule to make target 'x'.  Stop."
        );
    }
}
