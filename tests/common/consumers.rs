//! Python with the packages of `tests/consumers/requirements.txt`, in a folder of cargo's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::said;

/// Of the packages that the folder has.
const REQUIREMENTS: &str = include_str!("../consumers/requirements.txt");

/// Runs `tests/consumers/SCRIPT`.
pub fn consume(script: &str, arguments: &[&Path]) -> Output {
    let consumers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/consumers");
    Command::new(python())
        .arg(consumers.join(script))
        .args(arguments)
        .output()
        .expect("python can be started")
}

/// The interpreter of a virtual environment, which is made once.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("consumers");
        let (python, made) = (folder.join("bin/python"), folder.join("made"));
        if fs::read_to_string(&made).is_ok_and(|it| it == REQUIREMENTS) {
            return python;
        }
        let _ = fs::remove_dir_all(&folder);
        let done = |command: &mut Command| {
            let output = command.output().expect("python3 is installed");
            assert!(output.status.success(), "{}", said(&output));
        };
        done(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, REQUIREMENTS).expect("the folder is ours");
        let pip = ["-m", "pip", "install", "--quiet", "--requirement"];
        done(Command::new(&python).args(pip).arg(&requirements));
        fs::write(&made, REQUIREMENTS).expect("the folder is ours");
        python
    })
}
