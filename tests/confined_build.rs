//! A stranger's tree whose Makefile wants the user's files and the network.

#![allow(
    clippy::tests_outside_test_module,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use unwindlab_guest_kernel::confine::means;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// A user with a secret in the home folder, a port on which nobody should call, and a hostile tree.
struct Victim {
    folder: tempfile::TempDir,
    port: TcpListener,
}

const SECRET: &str = "the secret of the home folder";

impl Victim {
    fn new() -> Fallible<Self> {
        // Not below /tmp, where a build might have a folder of its own.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let port = TcpListener::bind("127.0.0.1:0")?;
        port.set_nonblocking(true)?;
        let victim = Self { folder, port };
        fs::create_dir(victim.home())?;
        fs::write(victim.home().join("secret"), SECRET)?;
        for (file, text) in [
            ("Kconfig", String::new()),
            ("arch/x86/Kconfig", String::new()),
            ("kernel/f", String::new()),
            ("Makefile", victim.makefile()?),
        ] {
            let path = victim.tree().join(file);
            fs::create_dir_all(path.parent().ok_or("no folder")?)?;
            fs::write(path, text)?;
        }
        Ok(victim)
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// Each attempt by itself; at last it breaks off, since there is no kernel.
    fn makefile(&self) -> Fallible<String> {
        let home = self.home().display().to_string();
        let port = self.port.local_addr()?.port();
        let call = "use IO::Socket::INET; exit !IO::Socket::INET->new(shift)";
        Ok(format!(
            "allnoconfig:\n\
             \tcp $(KCONFIG_ALLCONFIG) $(O)/.config\n\
             \techo ran > $(O)/ran\n\
             \t-cat {home}/secret > $(O)/taken\n\
             \t-echo changed > {home}/secret\n\
             \t-echo new > {home}/new\n\
             \t-chmod 777 {home}\n\
             \t-echo changed >> Makefile\n\
             \t-perl -e '{call}' 127.0.0.1:{port} && echo called > $(O)/called\n\
             \tfalse\n"
        ))
    }

    fn build(&self, cache: &Path, option: &[&str]) -> io::Result<Output> {
        Command::new(env!("CARGO_BIN_EXE_unwindlab"))
            .env("UNWINDLAB_CACHE", cache)
            .env("HOME", self.home())
            .args(["kernel", "build", "--tree"])
            .arg(self.tree())
            .args(option)
            .output()
    }

    /// What the Makefile left in the folder of the objects, by the file's name.
    fn left(&self, cache: &Path, name: &str) -> Fallible<Option<String>> {
        for workspace in fs::read_dir(cache.join("builds"))? {
            let src = workspace?.path().join("src");
            for item in fs::read_dir(src)? {
                let path = item?.path().join(name);
                if path.is_file() {
                    return Ok(Some(fs::read_to_string(path)?));
                }
            }
        }
        Ok(None)
    }

    /// Whether somebody called.
    fn was_called(&self) -> bool {
        self.port.accept().is_ok()
    }

    fn mode(&self) -> io::Result<u32> {
        use std::os::unix::fs::PermissionsExt as _;
        Ok(fs::metadata(self.home())?.permissions().mode() & 0o777)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_makefile_gets_neither_the_home_folder_nor_the_network() -> Fallible<()> {
    let victim = Victim::new()?;
    let cache = victim.folder.path().join("cache");
    let mode = victim.mode()?;
    let built = victim.build(&cache, &["--require-sandbox"])?;
    let said = said(&built);
    if let Some(lacking) = means().lacking() {
        eprintln!("THIS SYSTEM CANNOT CONFINE A BUILD: {lacking}. Only the refusal is tested.");
        assert_eq!(built.status.code(), Some(125), "{said}");
        assert!(said.contains("--require-sandbox"), "{said}");
        assert!(said.contains(&lacking), "{said}");
        assert_eq!(victim.left(&cache, "ran")?, None, "it was executed");
        return Ok(());
    }
    assert_eq!(built.status.code(), Some(125), "{said}");
    let left = |name| victim.left(&cache, name);
    assert_eq!(left("ran")?.as_deref(), Some("ran\n"), "{said}");
    assert_eq!(left("taken")?.as_deref(), Some(""));
    assert_eq!(left("called")?, None);
    assert!(!victim.was_called());
    let home: Vec<_> = fs::read_dir(victim.home())?.collect::<Result<_, _>>()?;
    assert_eq!(home.len(), 1, "{home:?}");
    assert_eq!(fs::read_to_string(victim.home().join("secret"))?, SECRET);
    let makefile = fs::read_to_string(victim.tree().join("Makefile"))?;
    assert_eq!(makefile, victim.makefile()?);
    match &means().namespaces {
        Ok(()) => assert_eq!(victim.mode()?, mode),
        Err(why) => eprintln!("NOT TESTED: modes of files, since there are no namespaces: {why}"),
    }
    Ok(())
}

/// The same Makefile succeeds unconfined, so the test above can fail.
#[test]
fn without_a_sandbox_it_gets_both() -> Fallible<()> {
    let victim = Victim::new()?;
    let cache = victim.folder.path().join("cache");
    let built = victim.build(&cache, &["--no-sandbox"])?;
    assert_eq!(built.status.code(), Some(125), "{}", said(&built));
    let left = |name| victim.left(&cache, name);
    assert_eq!(left("taken")?.as_deref(), Some(SECRET), "{}", said(&built));
    assert_eq!(left("called")?.as_deref(), Some("called\n"));
    assert!(victim.was_called());
    assert_eq!(victim.mode()?, 0o777);
    Ok(())
}

/// A link in the tree where the objects are to be, which would be written through.
#[test]
fn a_link_in_place_of_the_objects_is_refused() -> Fallible<()> {
    let victim = Victim::new()?;
    let first = victim.folder.path().join("first");
    victim.build(&first, &[])?;
    let workspaces = fs::read_dir(first.join("builds"))?;
    let src = workspaces.last().ok_or("no workspace")??.path().join("src");
    let objects = fs::read_dir(src)?
        .filter_map(Result::ok)
        .map(|item| item.file_name())
        .find(|name| name.to_string_lossy().starts_with("obj-"))
        .ok_or("no objects")?;
    std::os::unix::fs::symlink(victim.home(), victim.tree().join(objects))?;
    let second = victim.folder.path().join("second");
    let built = victim.build(&second, &[])?;
    assert!(said(&built).contains("symbolic link"), "{}", said(&built));
    assert_eq!(fs::read_dir(victim.home())?.count(), 1);
    Ok(())
}
