//! Runs `make`: from a tree and a configuration to a vmlinux.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use super::BuildError;
use super::config::{self, Fragment};
use super::workspace::Building;
use crate::cache::{At, CacheError};
use crate::child;
use crate::confine::{self, Allowed};
use crate::input;
use crate::progress::Progress;

/// Fixes what a build writes into the image about itself, so that builds are reproducible.
pub(super) const FIXED: &[(&str, &str)] = &[
    ("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970"),
    ("KBUILD_BUILD_USER", "unwindlab"),
    ("KBUILD_BUILD_HOST", "unwindlab"),
    ("KBUILD_BUILD_VERSION", "1"),
    ("LC_ALL", "C"),
];

/// What a build sees of the environment: where tools, headers and libraries are. Other variables would change
/// it, or are nobody's business.
pub(super) const KEPT: &[&str] = &[
    "PATH",
    "CPATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "PKG_CONFIG_PATH",
];

/// Largest log and `.config` that are read.
const TEXT: u64 = input::RECORDED;

/// Names of both.
const LOG: &str = "build.log";
pub(super) const CONFIG: &str = ".config";

/// Number of lines of the log that are shown if a build fails.
const SHOWN: usize = 20;

/// Name of the kernel in the folder of the objects.
pub(super) const VMLINUX: &str = "vmlinux";

/// Builds the workspace's tree with this configuration.
pub(super) fn vmlinux(
    workspace: &Building,
    fragments: &[Fragment],
    what: &str,
    progress: &dyn Progress,
) -> Result<(), BuildError> {
    let make = Make {
        src: workspace.folders().src(),
        obj: workspace.folders().obj(fragments),
        what,
        progress,
    };
    fs::create_dir_all(&make.obj).at(&make.obj)?;
    is_ours(&make.obj).at(&make.obj)?;
    progress.step(&format!("configuring {what}"));
    configure(&make, fragments)?;
    progress.step(&format!("compiling {what}"));
    make.run(VMLINUX)
}

/// The tree and its Makefiles are strangers': what they put there may be a link to a file of the user's.
fn is_ours(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_symlink() {
        true => Err(io::Error::other("it is a symbolic link")),
        false => Ok(()),
    }
}

/// Creates a file where the tree's Makefiles can write too: never through a link of theirs.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

/// Writes the `.config`. If it is the same as before, the file stays untouched, so `make` compiles
/// nothing because of it.
fn configure(make: &Make<'_>, fragments: &[Fragment]) -> Result<(), BuildError> {
    let asked = make.obj.join("asked.config");
    let text = config::merged(fragments);
    create(&asked)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .at(&asked)?;
    make.run("allnoconfig")?;
    let got = make.read(CONFIG)?;
    config::check(fragments, &String::from_utf8_lossy(&got))
}

/// The two folders of a build.
struct Make<'a> {
    src: PathBuf,
    obj: PathBuf,
    what: &'a str,
    progress: &'a dyn Progress,
}

impl Make<'_> {
    /// Reads a file that the tree's Makefiles may have made.
    fn read(&self, file: &str) -> Result<Vec<u8>, BuildError> {
        Ok(input::below(&self.obj, file, TEXT).at(&self.obj.join(file))?)
    }

    fn run(&self, target: &'static str) -> Result<(), BuildError> {
        let log = self.obj.join(LOG);
        let output = create(&log).at(&log)?;
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
            .env_clear()
            .envs(
                KEPT.iter()
                    .filter_map(|name| Some((name, env::var_os(name)?))),
            )
            .envs(FIXED.iter().copied())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        self.confine(&mut command)?;
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
        let text = self.read(LOG)?;
        let text = String::from_utf8_lossy(&text);
        if text.contains("No space left on device") {
            return Err(CacheError::NoSpace(self.obj.clone()).into());
        }
        // The next build must not overwrite it.
        let kept = self.obj.join("failed.log");
        let mut file = create(&kept).at(&kept)?;
        file.write_all(text.as_bytes()).at(&kept)?;
        Err(BuildError::Compile {
            what: self.what.to_owned(),
            target,
            lines: telling(&below_tree(&text)),
            log: kept,
        })
    }

    /// The tree's Makefiles are programs: they see the tree and the system's programs, write to the folder of the
    /// objects, and have no network.
    fn confine(&self, command: &mut Command) -> Result<(), BuildError> {
        let temporary = self.obj.join("temporary");
        match fs::create_dir(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CacheError::new(&temporary, error).into());
            }
            _ => {}
        }
        command.env("HOME", &temporary).env("TMPDIR", &temporary);
        let allowed = Allowed::system().and_read(&self.src).and_write(&self.obj);
        Ok(confine::confine(command, &allowed, "a kernel's build")?)
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
