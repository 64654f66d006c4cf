use unwindlab_guest_kernel::build::header;
use unwindlab_guest_kernel::build::recipients::Recipients;
use unwindlab_guest_kernel::build::submission::Sender;

use super::*;

fn made() -> Submission {
    Submission {
        patch: Vec::new(),
        application: Application::Exactly,
        release: "7.3.4".to_owned(),
        base: None,
        checked: "total: 0 errors, 0 warnings, 9 lines checked".to_owned(),
        fixes_confirmed: true,
        recipients: Recipients {
            to: vec![
                "A <a@example.org>".to_owned(),
                "B <b@example.org>".to_owned(),
            ],
            cc: vec!["l@example.org".to_owned()],
        },
        sender: Sender {
            name: "T".to_owned(),
            address: "t@example.org".to_owned(),
        },
    }
}

fn all() -> Vec<Facts> {
    let fixes = header::fixes().unwrap();
    fixes.into_iter().map(|it| Facts::of(it).unwrap()).collect()
}

fn finding(id: &str) -> Facts {
    all().into_iter().find(|it| it.id == id).unwrap()
}

#[test]
fn a_mail_says_what_a_maintainer_asks_for() {
    insta::assert_snapshot!(
        finding("F004")
            .mail(&made(), "debian:7")
            .split("-- >8")
            .next()
            .unwrap()
    );
}

#[test]
fn a_patch_has_a_changelog_with_its_tags() {
    let Message { subject, changelog } = finding("F006").message();
    insta::assert_snapshot!(format!("{subject}\n\n{changelog}"));
}

#[test]
fn every_finding_has_its_facts_and_short_lines() {
    for facts in all() {
        let (mail, message) = (facts.mail(&made(), "debian:7"), facts.message());
        let (prose, program) = mail.split_once("-- >8 -- ").unwrap_or((&mail, ""));
        for line in prose.lines().chain(message.changelog.lines()) {
            let is_tag = line.starts_with("Fixes: ") || line.starts_with("Link: ");
            let is_code = line.starts_with("    ") || !line.contains(' ');
            let is_short = line.chars().count() <= plain::WIDTH;
            assert!(is_short || is_tag || is_code, "{}: {line}", facts.id);
            assert!(
                !line.contains('`') && !line.contains("]("),
                "{}: {line}",
                facts.id
            );
        }
        assert_eq!(program.is_empty(), facts.reproducer().is_none());
        assert_eq!(
            prose.contains("\nFixes: "),
            facts.since.is_some(),
            "{prose}"
        );
        for text in [prose, &message.changelog] {
            assert!(!text.contains("Signed-off-by") && !text.contains("Assisted-by"));
        }
    }
}

#[test]
fn a_commit_that_is_not_known_is_not_invented() {
    let facts = finding("F013");
    assert!(!facts.message().changelog.contains("Fixes:"));
    let mail = facts.mail(&made(), "debian:7");
    assert!(
        mail.contains("The commit that brought it is not known."),
        "{mail}"
    );
    assert!(notes(&facts, &made()).contains("no `Fixes:`"));
    for text in [
        "`12345` (\"a\"), which b",
        "be3d526a5b34",
        "`be3d526a5b34` (\"a\")",
    ] {
        assert_eq!(Commit::parse(text), None, "{text}");
    }
}

#[test]
fn the_sender_is_told_what_is_left_to_do() {
    let (facts, mut made) = (finding("F001"), made());
    let text = notes(&facts, &made);
    assert!(text.starts_with("Nothing was sent."), "{text}");
    for word in [
        "Signed-off-by",
        "Assisted-by",
        "threat-model.rst",
        "mainline",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("user.name"));
    made.sender.name = Sender::NOBODY.0.to_owned();
    made.sender.address = Sender::NOBODY.1.to_owned();
    assert!(notes(&facts, &made).contains("user.name"));
}
