//! The mirror of Debian's archive, from the system's own apt configuration.

use std::env;
use std::fs;
use std::path::Path;

use super::AptError;

/// Names the mirror to use instead of the system's, as a URI that apt understands.
pub const MIRROR_VARIABLE: &str = "UNWINDLAB_MIRROR";

/// Releases of Debian itself: a source that offers one of these in `main` is Debian's archive,
/// or somebody's additions to it.
const RELEASES: &[&str] = &[
    "oldstable",
    "stable",
    "testing",
    "unstable",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
];

/// Where Debian's own packages put the keys of its archive.
const KEYRINGS: &[&str] = &[
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
];

/// A mirror of Debian's archive, and the keys that sign it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    pub uri: String,
    /// Value of `Signed-By`, as written in the system's source: a path, fingerprints, or a whole
    /// key. Empty: apt's own trusted keys.
    pub signed_by: String,
}

/// An apt source of the system that offers a Debian release.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate<'a> {
    uri: &'a str,
    /// The file that names it.
    file: &'a str,
}

/// Whether apt can read it as one: a scheme, which may name two methods (`mirror+http`), and no space.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |it| it.0);
    let of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    !scheme.is_empty()
        && scheme.chars().all(of_scheme)
        && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

impl Mirror {
    /// Takes `UNWINDLAB_MIRROR`, else the system's mirror, from the output of
    /// `apt-get indextargets` in [`TARGET_FORMAT`].
    pub fn choose(targets: &str) -> Result<Self, AptError> {
        let own = candidate(targets);
        let chosen = env::var(MIRROR_VARIABLE).ok().filter(|uri| !uri.is_empty());
        let uri = chosen
            .or_else(|| own.as_ref().map(|own| own.uri.to_owned()))
            .ok_or(AptError::NoArchive)?;
        if !is_uri(&uri) {
            return Err(AptError::BadMirror(uri));
        }
        let signed_by = own
            .and_then(|own| signed_by(&fs::read_to_string(own.file).ok()?, own.uri))
            .or_else(|| {
                let keyring = KEYRINGS.iter().find(|path| Path::new(path).exists());
                keyring.map(|path| (*path).to_owned())
            })
            .unwrap_or_default();
        Ok(Self { uri, signed_by })
    }

    /// The text of a source file (deb822) for these suites.
    pub fn source(&self, suites: &[&str]) -> String {
        self.entry("deb", suites)
    }

    /// The same for the source packages of these suites.
    pub fn sources_of(&self, suites: &[&str]) -> String {
        self.entry("deb-src", suites)
    }

    fn entry(&self, kind: &str, suites: &[&str]) -> String {
        let mut text = format!(
            "Types: {kind}\nURIs: {}\nSuites: {}\nComponents: main\nArchitectures: amd64\n",
            self.uri,
            suites.join(" ")
        );
        if !self.signed_by.is_empty() {
            text.push_str(&format!("Signed-By: {}\n", self.signed_by));
        }
        text
    }
}

/// One line per target: release, component, URI, and the file that names the source.
pub(super) const TARGET_FORMAT: &str = "$(RELEASE)|$(COMPONENT)|$(REPO_URI)|$(SOURCESENTRY)";

/// The source that is most likely Debian's archive itself. Others also publish for Debian's
/// releases; apt checks the signature later.
fn candidate(targets: &str) -> Option<Candidate<'_>> {
    let candidates = || {
        targets.lines().filter_map(|line| {
            let mut fields = line.split('|');
            let (release, component) = (fields.next()?, fields.next()?);
            let (uri, entry) = (fields.next()?, fields.next()?);
            let file = entry.rsplit_once(':')?.0;
            (RELEASES.contains(&release) && component == "main").then_some(Candidate { uri, file })
        })
    };
    candidates()
        .find(|own| own.uri.trim_end_matches('/').ends_with("/debian"))
        .or_else(|| candidates().find(|own| own.uri.contains("debian")))
        .or_else(|| candidates().next())
}

/// The `Signed-By` for `uri` in a source file of either format.
fn signed_by(source: &str, uri: &str) -> Option<String> {
    let uri = uri.trim_end_matches('/');
    let names_it = |text: &str| {
        text.split_ascii_whitespace()
            .any(|word| word.trim_end_matches('/') == uri)
    };
    let one_line = source
        .lines()
        .filter(|line| line.starts_with("deb") && names_it(line))
        .find_map(|line| {
            let options = line.split_once('[')?.1.split_once(']')?.0;
            options
                .split_ascii_whitespace()
                .find_map(|option| option.strip_prefix("signed-by="))
        });
    if let Some(found) = one_line {
        return Some(found.to_owned());
    }
    source.split("\n\n").find_map(|stanza| {
        let field = |name: &str| field(stanza, name);
        field("uris")
            .filter(|uris| names_it(uris))
            .and_then(|_| field("signed-by"))
    })
}

/// The value of a deb822 field, with its continuation lines but without comments.
fn field(stanza: &str, name: &str) -> Option<String> {
    let mut lines = stanza.lines().filter(|line| !line.starts_with('#'));
    let first = lines.find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })?;
    let mut value = first.to_owned();
    for line in lines.take_while(|line| line.starts_with([' ', '\t'])) {
        value.push('\n');
        value.push_str(line);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_debian_among_the_sources() {
        let targets = "cloud-sdk-bookworm|main|https://example.com/apt/|/a/cloud.list:1\n\
                       bookworm|main|https://example.com/debian/12/prod/|/a/prod.list:1\n\
                       bookworm|contrib|http://mirror.example/debian/|/a/debian.sources:1\n\
                       bookworm|main|http://mirror.example/debian/|/a/debian.sources:1\n\
                       bookworm-security|main|http://mirror.example/debian-security/|/a/d.sources:2\n";
        assert_eq!(
            candidate(targets),
            Some(Candidate {
                uri: "http://mirror.example/debian/",
                file: "/a/debian.sources"
            })
        );
        assert_eq!(
            candidate("noble|main|http://mirror.example/ubuntu/|/a/u:1"),
            None
        );
        assert_eq!(candidate("nonsense\n|||\n"), None);
        let list = "trixie|main|mirror+file:/etc/apt/mirrors/debian.list/|/a/debian.sources:1";
        assert!(candidate(list).is_some());
    }

    #[test]
    fn a_mirror_is_a_uri() {
        for uri in ["http://a/debian", "https://a", "file:/a", "mirror+http://a"] {
            assert!(is_uri(uri), "{uri}");
        }
        for other in [
            "foo",
            "",
            ":",
            "a b:c",
            "http://a b",
            "http://a\nb",
            "/srv/debian",
        ] {
            assert!(!is_uri(other), "{other:?}");
        }
    }

    #[test]
    fn finds_the_key_in_both_formats() {
        let one_line =
            "# comment\ndeb [arch=amd64 signed-by=/k/a.gpg] http://m.example/debian sid main\n";
        assert_eq!(
            signed_by(one_line, "http://m.example/debian/").as_deref(),
            Some("/k/a.gpg")
        );
        let stanzas = "Types: deb\n# URIs: x\nURIs: http://m.example/debian\nSuites: sid\n\
                       Signed-By: /k/b.gpg\n\nURIs: http://m.example/security\nSigned-By:\n line\n .\n last\n";
        assert_eq!(
            signed_by(stanzas, "http://m.example/debian/").as_deref(),
            Some("/k/b.gpg")
        );
        assert_eq!(
            signed_by(stanzas, "http://m.example/security").as_deref(),
            Some("\n line\n .\n last")
        );
        assert_eq!(signed_by(stanzas, "http://other.example/debian"), None);
    }

    #[test]
    fn writes_a_source() {
        let mirror = Mirror {
            uri: "http://m.example/debian".to_owned(),
            signed_by: "/k/a.gpg".to_owned(),
        };
        assert_eq!(
            mirror.source(&["trixie", "sid"]),
            "Types: deb\nURIs: http://m.example/debian\nSuites: trixie sid\nComponents: main\n\
             Architectures: amd64\nSigned-By: /k/a.gpg\n"
        );
    }
}
