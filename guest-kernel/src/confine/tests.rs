use std::fs;

use super::*;

/// What a shell prints that is confined to the system and the folder, or `None` where that cannot be.
fn confined(folder: &Path, script: &str) -> Option<String> {
    if let Some(lacking) = means().lacking() {
        eprintln!("NOT TESTED, since this system cannot confine: {lacking}");
        return None;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir("/");
    confine(&mut shell, &Allowed::system().and_write(folder), "a test").unwrap();
    let output = shell.output().unwrap();
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn writes_to_its_folder_only() {
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let secret = other.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let (own_path, secret_path) = (own.path().display(), secret.display());
    let script = format!(
        "echo mine > {own_path}/it && cat {own_path}/it; cat {secret_path}; \
         echo changed > {secret_path}; echo > {secret_path}.new; ls {}; : > {secret_path}; \
         ln {secret_path} {own_path}/link; mv {secret_path} {own_path}/moved; true",
        other.path().display()
    );
    let Some(said) = confined(own.path(), &script) else {
        return;
    };
    assert_eq!(said, "mine\n");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(own.path()).unwrap().count(), 1);
}

#[test]
fn has_no_privileges() {
    let own = tempfile::tempdir().unwrap();
    let allowed = Allowed::system().and_read(Path::new("/proc"));
    if means().lacking().is_some() {
        return;
    }
    let mut grep = Command::new("grep");
    grep.args(["-E", "^(NoNewPrivs|Seccomp|CapEff):", "/proc/self/status"]);
    confine(&mut grep, &allowed.and_write(own.path()), "a test").unwrap();
    let said = String::from_utf8(grep.output().unwrap().stdout).unwrap();
    assert!(said.contains("NoNewPrivs:\t1\nSeccomp:\t2\n"), "{said}");
    if means().namespaces.is_ok() {
        assert!(said.contains("CapEff:\t0000000000000000\n"), "{said}");
    }
}

#[test]
fn what_is_lacking_is_named() {
    let means = Means {
        files: Err("ENOSYS".to_owned()),
        calls: Ok(()),
        namespaces: Err("EPERM".to_owned()),
    };
    assert_eq!(means.lacking().as_deref(), Some("no Landlock (ENOSYS)"));
    let all = Means {
        files: Ok(()),
        ..means
    };
    assert_eq!(all.lacking(), None, "namespaces are not required");
}
