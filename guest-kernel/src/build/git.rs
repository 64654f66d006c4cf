//! Runs git: on our own repository without the user's configuration, and on the user's, read-only.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::BuildError;
use crate::child;

/// A repository's configuration may name programs, and that of a stranger's tree is the stranger's. Our calls in it are
/// `rev-parse`, `log`, `rev-list` and `config`, and `log` starts one for a commit that is signed. The others are for the
/// repositories that a tree holds, which `add` looks into.
const NO_PROGRAMS: [&str; 6] = [
    "-c",
    "log.showSignature=false",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
];

/// An object that a repository lacks is not fetched, which any of our calls would do where the configuration promises it: a
/// fetch starts programs (`remote.*.uploadpack`). git before 2.44 knows only the second.
const NO_FETCH: [(&str, &str); 2] = [("GIT_NO_LAZY_FETCH", "1"), ("GIT_ALLOW_PROTOCOL", "")];

/// A repository in the cache, and folders with further objects.
#[derive(Debug, Clone)]
pub(super) struct Git {
    dir: PathBuf,
    /// Objects of the user's repository, read only.
    alternates: Vec<PathBuf>,
}

/// One call of git.
#[derive(Debug)]
pub(super) struct Call {
    command: Command,
    name: String,
    input: Vec<u8>,
}

/// git's message when it failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub command: String,
    pub message: String,
}

impl From<Failure> for BuildError {
    fn from(failure: Failure) -> Self {
        Self::Git {
            command: failure.command,
            message: failure.message,
        }
    }
}

/// The kind of object that a revision is resolved to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Object {
    Commit,
    Tree,
}

/// The id of the object that a revision names in the user's repository.
pub(super) fn resolve(tree: &Path, revision: &str, kind: Object) -> Result<String, BuildError> {
    let kind = match kind {
        Object::Commit => "commit",
        Object::Tree => "tree",
    };
    Call::in_tree(tree, "rev-parse")
        .args(["--verify", "--quiet", "--end-of-options"])
        .arg(format!("{revision}^{{{kind}}}"))
        .run()
        .map_err(|failure| BuildError::Revision {
            tree: tree.to_path_buf(),
            revision: revision.to_owned(),
            // With `--quiet` there is only an exit status if the revision does not exist.
            message: match failure.message.as_str() {
                message if message.starts_with("exit status") => {
                    "give a commit, tag or branch".to_owned()
                }
                message => message.to_owned(),
            },
        })
}

impl Git {
    /// The repository `dir`, which is created if it is missing.
    pub fn open(dir: PathBuf) -> Result<Self, Failure> {
        let git = Self {
            dir,
            alternates: Vec::new(),
        };
        if !git.dir.join("HEAD").exists() {
            git.call("init").args(["--quiet", "--bare"]).run()?;
            // It is a cache: speed matters more than surviving a power failure.
            for (key, value) in [
                ("core.compression", "1"),
                ("core.fsync", "none"),
                ("core.bare", "false"),
                ("gc.auto", "0"),
                ("core.quotePath", "false"),
            ] {
                git.call("config").args([key, value]).run()?;
            }
        }
        Ok(git)
    }

    /// The same repository with the objects of another one.
    pub fn with_objects_of(mut self, objects: Option<PathBuf>) -> Self {
        self.alternates.extend(objects);
        self
    }

    /// A call on this repository.
    pub fn call(&self, subcommand: &str) -> Call {
        self.call_with(&[], subcommand)
    }

    /// The same with options of git itself.
    pub fn call_with(&self, options: &[&str], subcommand: &str) -> Call {
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        let mut call = Call::prepared(subcommand, &options);
        call.command
            .env("GIT_DIR", &self.dir)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        let alternates = std::env::join_paths(&self.alternates);
        if let (false, Ok(alternates)) = (self.alternates.is_empty(), alternates) {
            call.command
                .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates);
        }
        call
    }
}

impl Call {
    /// A call on the repository that the arguments name, with the user's configuration. It takes no
    /// locks and refreshes no files there.
    pub fn new(subcommand: &str) -> Self {
        Self::prepared(subcommand, &[])
    }

    /// The same on the repository of a folder of the user's.
    pub fn in_tree(tree: &Path, subcommand: &str) -> Self {
        Self::prepared(subcommand, &[OsStr::new("-C"), tree.as_os_str()])
    }

    fn prepared(subcommand: &str, options: &[&OsStr]) -> Self {
        let mut command = Command::new("git");
        command.args(NO_PROGRAMS).args(options).arg(subcommand);
        // git sets these for what it runs (a hook, `git bisect run`), which may be us.
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(variable);
        }
        command
            .env("GIT_OPTIONAL_LOCKS", "0")
            .envs(NO_FETCH)
            .env("LC_ALL", "C.UTF-8");
        Self {
            command,
            name: subcommand.to_owned(),
            input: Vec::new(),
        }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// With this variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// With this index file.
    pub fn index(mut self, file: &Path) -> Self {
        self.command.env("GIT_INDEX_FILE", file);
        self
    }

    /// With this folder as the work tree.
    pub fn work_tree(mut self, folder: &Path) -> Self {
        self.command
            .env("GIT_WORK_TREE", folder)
            .current_dir(folder);
        self
    }

    /// With this on its standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Runs it, and returns its output without the last line feed.
    pub fn run(self) -> Result<String, Failure> {
        Ok(text(&self.output()?.stdout))
    }

    /// Runs it, and returns its messages (standard error).
    pub fn messages(self) -> Result<String, Failure> {
        Ok(text(&self.output()?.stderr))
    }

    /// Runs it, and returns its output as it is.
    pub fn bytes(self) -> Result<Vec<u8>, Failure> {
        Ok(self.output()?.stdout)
    }

    fn output(mut self) -> Result<Output, Failure> {
        let failed = |error: io::Error| Failure {
            command: self.name.clone(),
            message: error.to_string(),
        };
        let input = std::mem::take(&mut self.input);
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        child::end_with_us(&mut self.command);
        let mut child = self.command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // In parallel with reading its output, to avoid a deadlock. If git stops reading
            // (EPIPE), its exit code says whether that is an error.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
            child.wait_with_output()
        })
        .map_err(failed)?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.trim_end();
            return Err(Failure {
                command: self.name,
                message: if message.is_empty() {
                    output.status.to_string()
                } else {
                    message.to_owned()
                },
            });
        }
        Ok(output)
    }

    /// Runs it with a pipe as its standard input, which `write` fills.
    pub fn feed(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let name = self.name.clone();
        let failed = |error: io::Error| Failure {
            command: name.clone(),
            message: error.to_string(),
        };
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        child::end_with_us(&mut self.command);
        let mut child = self.command.spawn().map_err(failed)?;
        let written = match child.stdin.take() {
            Some(stdin) => write(&mut io::BufWriter::with_capacity(1 << 18, stdin)),
            None => Ok(()),
        };
        if written.is_err() {
            // It would otherwise take partial input for the whole.
            let _ = child.kill();
        }
        let output = child.wait_with_output().map_err(failed)?;
        written?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure {
            command: self.name,
            message: String::from_utf8_lossy(&output.stderr)
                .trim_end()
                .to_owned(),
        }
        .into())
    }
}

/// Without the last line feed.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::history::History;
    use super::*;

    /// A repository whose configuration has this for `PROGRAM`, a program that leaves the file `ran` beside it. `HEAD` is a
    /// commit with a signature, of this tree and with these parents.
    fn hostile(folder: &Path, configuration: &str, tree: &str, parents: &str) -> PathBuf {
        let program = folder.join("program");
        let text = format!("#!/bin/sh\ntouch {}\n", folder.join("ran").display());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let repository = folder.join("repository");
        fs::create_dir(&repository).unwrap();
        let call = |subcommand| Call::in_tree(&repository, subcommand);
        call("init").arg("--quiet").run().unwrap();
        let commit = format!(
            "tree {tree}\n{parents}author a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\
             gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\nsubject\n"
        );
        let store = call("hash-object").args(["-w", "-t", "commit", "--stdin"]);
        let commit = store.input(commit).run().unwrap();
        call("update-ref").args(["HEAD", &commit]).run().unwrap();
        let config = repository.join(".git/config");
        let text = configuration.replace("PROGRAM", &program.display().to_string());
        fs::write(&config, fs::read_to_string(&config).unwrap() + &text).unwrap();
        repository
    }

    #[test]
    fn a_repository_that_promises_objects_starts_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let [tree, parent] = ["1", "2"].map(|digit| digit.repeat(40));
        let promises = "[extensions]\npartialClone = evil\n[remote \"evil\"]\npromisor = true\n\
                        url = .\nuploadpack = PROGRAM\n";
        let parent = format!("parent {parent}\n");
        let repository = hostile(folder.path(), promises, &tree, &parent);
        assert!(resolve(&repository, "HEAD", Object::Tree).is_err());
        let history = History::open(&repository).unwrap();
        assert!(history.commit("HEAD").is_err());
        assert!(history.range("HEAD").is_err());
        assert!(history.suspects("HEAD", &[]).is_err());
        assert!(!folder.path().join("ran").exists());
    }

    #[test]
    fn a_repository_that_shows_signatures_starts_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let shows = "[log]\nshowSignature = true\n[gpg]\nprogram = PROGRAM\n";
        let repository = hostile(folder.path(), shows, &"1".repeat(40), "");
        let history = History::open(&repository).unwrap();
        let commit = history.commit("HEAD").unwrap();
        assert_eq!(commit.subject, "subject");
        assert_eq!(history.range("HEAD").unwrap(), [commit]);
        assert!(!folder.path().join("ran").exists());
    }
}
