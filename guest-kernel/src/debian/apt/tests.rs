//! What the module above promises.

use super::run::{explain, show};
use super::*;

#[test]
fn reads_what_apt_offers() {
    let line = " linux-image-cloud-amd64 | 7.2.12-1~bpo13+1 | http://m.example/debian \
                trixie-backports/main amd64 Packages";
    assert_eq!(
        offer(line),
        Some(Offer {
            name: "linux-image-cloud-amd64".to_owned(),
            version: Version::new("7.2.12-1~bpo13+1"),
            suite: "trixie-backports".to_owned(),
        })
    );
    for nonsense in ["", "a | b", "a | b | c", "| | |"] {
        assert_eq!(offer(nonsense), None, "{nonsense}");
    }
}

/// Error texts as apt 2.6 printed them.
#[test]
fn failures_are_told_apart() {
    let explained = |errors: &str| explain("apt-get update".to_owned(), errors, "exit status: 100");
    let network = "W: Failed to fetch http://m.example/debian/dists/sid/InRelease  Could not \
                   resolve 'm.example'\nE: Some index files failed to download. They have been \
                   ignored, or old ones used instead.\n";
    assert!(matches!(explained(network), AptError::Network(line) if line.contains("resolve")));
    let refused = "E: Failed to fetch http://m.example/x.deb  Could not connect to m.example:80 \
                   (127.0.0.1). - connect (111: Connection refused)\nE: Unable to fetch some archives\n";
    assert!(matches!(explained(refused), AptError::Network(line) if line.contains("refused")));
    let signature = "W: GPG error: http://m.example/debian sid InRelease: The following signatures \
                     couldn't be verified because the public key is not available: NO_PUBKEY 0E98\n\
                     E: The repository 'http://m.example/debian sid InRelease' is not signed.\n";
    assert!(
        matches!(explained(signature), AptError::Signature(line) if line.contains("NO_PUBKEY"))
    );
    let unsigned = "E: The repository 'http://m.example/debian sid InRelease' is not signed.\n";
    assert!(matches!(explained(unsigned), AptError::Signature(_)));
    let refused = "E: The repository 'http://m.example/x sid InRelease' is not signed.\n\
                   E: Failed to fetch http://m.example/x/InRelease  400  Bad Request\n";
    assert!(matches!(explained(refused), AptError::Network(line) if line.contains("400")));
    let other = "E: Failed to fetch http://m.example/a.deb  Hash Sum mismatch\n   Hashes of expected file:\n    \
                 - SHA256:00\nE: Unable to fetch some archives\n";
    assert!(matches!(explained(other), AptError::Hash(line) if line.contains("mismatch")));
    let cut = "E: Failed to fetch http://m.example/a.deb  File has unexpected size (1 != 2). Mirror sync in \
               progress? [IP: 192.0.2.1 80]\n";
    assert!(matches!(explained(cut), AptError::Hash(line) if line.contains("1 != 2")));
    let gone = "E: Failed to fetch http://m.example/a.deb  404  Not Found [IP: 192.0.2.1 80]\n";
    assert!(matches!(explained(gone), AptError::Gone(line) if line.contains("404")));
    let unknown = "E: Version '7.2.1-1' for 'linux-binary-7.2.1-cloud-amd64' was not found\n";
    assert!(matches!(explained(unknown), AptError::Gone(_)));
    assert_eq!(
        explained("E: something else\n").to_string(),
        "apt-get update failed: something else"
    );
    assert_eq!(
        explained("").to_string(),
        "apt-get update failed: exit status: 100"
    );
}

#[test]
fn shows_apts_progress() {
    struct Percents(std::cell::RefCell<Vec<u64>>);
    impl Progress for Percents {
        fn step(&self, _what: &str) {}
        fn bytes(&self, done: u64, total: u64) {
            assert_eq!(total, 100);
            self.0.borrow_mut().push(done);
        }
    }
    let text = b"Get:1 something\ndlstatus:1:0.0470:Retrieving file 1 of 1\ndlstatus:1:x:\n\
                 \xff\ndlstatus:\ndlstatus:2:99.9:a\ndlstatus:2:700:a\n";
    let percents = Percents(std::cell::RefCell::default());
    show(&text[..], Path::new("/"), &percents).unwrap();
    assert_eq!(percents.0.into_inner(), [0, 99, 100]);
}

#[test]
fn a_program_that_is_not_there_is_told() {
    let error = run(&mut Command::new("no-such-program"), Path::new("/"), None).unwrap_err();
    assert!(matches!(error, AptError::Missing));
    let error = run(
        Command::new("sh").args(["-c", "echo E: it >&2; exit 3"]),
        Path::new("/"),
        None,
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "sh failed: it");
    assert_eq!(
        run(Command::new("echo").arg("a"), Path::new("/"), None).unwrap(),
        "a\n"
    );
}

/// Whatever the system says, signatures and hashes are checked.
#[test]
fn the_systems_settings_cannot_switch_checks_off() {
    const PINNED: [(&str, &str); 5] = [
        ("APT::Get::AllowUnauthenticated", "false"),
        ("Acquire::AllowInsecureRepositories", "false"),
        ("Acquire::AllowWeakRepositories", "false"),
        ("Acquire::AllowDowngradeToInsecureRepositories", "false"),
        ("Acquire::Check-Valid-Until", "true"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (system, own) = (folder.path().join("system"), folder.path().join("own"));
    let negate = |value| if value == "true" { "false" } else { "true" };
    let weak = PINNED.map(|(key, value)| format!("{key} \"{}\";\n", negate(value)));
    fs::write(&system, weak.concat()).unwrap();
    fs::write(&own, CONFIG).unwrap();
    let dump = |own: &[&Path]| {
        let mut command = Command::new("apt-config");
        command.env("APT_CONFIG", &system);
        command.args(
            own.iter()
                .flat_map(|own| [OsStr::new("-c"), own.as_os_str()]),
        );
        run(command.arg("dump"), folder.path(), None).unwrap()
    };
    let (before, after) = (dump(&[]), dump(&[&own]));
    for (key, value) in PINNED {
        let line = |value| format!("{key} \"{value}\";");
        assert!(before.contains(&line(negate(value))), "{key}: {before}");
        assert!(after.contains(&line(value)), "{key}: {after}");
    }
}
