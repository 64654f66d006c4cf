//! Findings: kernel bugs that are understood, as data, and whether a violation is one of them.
//!
//! The list is docs/findings/findings.yaml, built in; docs/findings/README.md explains its form.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::signature::Signature;
use super::{Violation, registry};
use crate::trace::Trace;

/// The list that the program is built with.
const EMBEDDED: &str = include_str!("../../../docs/findings/findings.yaml");

/// The id of a finding (`F001`), as in docs/findings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct FindingId(String);

impl FindingId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for FindingId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// What a signature needs to know of the kernel under test.
pub trait Resolver {
    /// The function that holds a kernel address.
    fn function(&self, address: u64) -> Option<String>;
    /// Whether the kernel has a symbol of this name.
    fn has(&self, name: &str) -> bool;
}

/// Why a list of findings is not acceptable.
#[derive(Debug, thiserror::Error)]
pub enum FindingsError {
    /// It is not the YAML that docs/findings/README.md describes.
    #[error("findings.yaml: {0}")]
    Yaml(String),
    /// An entry says what cannot be.
    #[error("finding {id}: {what}")]
    Entry {
        /// The entry's id as written.
        id: String,
        /// What is wrong with it.
        what: String,
    },
}

/// One entry.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Its id.
    pub id: FindingId,
    /// One line: what goes wrong.
    pub title: String,
    /// The invariants it violates.
    pub invariants: Vec<String>,
    /// The kernels that have it.
    pub kernels: Kernels,
    /// The event sequence it is known by.
    signature: Signature,
    /// Other sequences that the same bug shows, the lab client's log among them.
    #[serde(default)]
    also: Vec<Signature>,
}

/// Kernels that have a bug.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernels {
    /// Patterns of `uname -r`; `*` stands for anything. One of them must match.
    pub releases: Vec<String>,
    /// Names that the kernel's symbol table must have, all of them.
    #[serde(default)]
    pub symbols: Vec<String>,
}

/// The findings that are known.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    list: Vec<Finding>,
}

impl Findings {
    /// Those the program is built with.
    ///
    /// # Errors
    /// [`FindingsError`], which a test rules out.
    pub fn embedded() -> Result<Self, FindingsError> {
        Self::parse(EMBEDDED)
    }

    /// Reads a list.
    ///
    /// # Errors
    /// [`FindingsError`] for anything but a list of well-formed entries with ids of their own.
    pub fn parse(yaml: &str) -> Result<Self, FindingsError> {
        let list: Vec<Finding> =
            serde_saphyr::from_str(yaml).map_err(|error| FindingsError::Yaml(error.to_string()))?;
        let mut ids = BTreeSet::new();
        for finding in &list {
            let flaw = if ids.insert(finding.id.clone()) {
                finding.flaw()
            } else {
                Some("the id is used twice".to_owned())
            };
            if let Some(what) = flaw {
                let id = finding.id.0.clone();
                return Err(FindingsError::Entry { id, what });
            }
        }
        Ok(Self { list })
    }

    /// All of them, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.list.iter()
    }

    /// The finding that a violation in a trace is, if it matches one exactly: its invariant, the
    /// kernel, and the whole sequence of its events. Anything else stays a failure.
    #[must_use]
    pub fn match_finding<K: Resolver + ?Sized>(
        &self,
        violation: &Violation,
        trace: &Trace,
        kernel: &K,
    ) -> Option<FindingId> {
        let matches = |finding: &&Finding| {
            finding.invariants.contains(&violation.invariant)
                && finding.kernels.include(&trace.release, kernel)
                && finding
                    .signatures()
                    .any(|signature| signature.matches(violation, trace, kernel))
        };
        self.list.iter().find(matches).map(|f| f.id.clone())
    }
}

impl Finding {
    fn signatures(&self) -> impl Iterator<Item = &Signature> {
        std::iter::once(&self.signature).chain(&self.also)
    }

    /// What is wrong with an entry, if anything is.
    fn flaw(&self) -> Option<String> {
        let number = self.id.0.strip_prefix('F').unwrap_or_default();
        if number.len() != 3 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Some("the id is not F and three digits".into());
        }
        if self.invariants.is_empty() || self.kernels.releases.is_empty() {
            return Some("it names no invariants or no kernels".into());
        }
        let known = |id: &&String| registry().iter().any(|i| i.id() == id.as_str());
        if let Some(id) = self.invariants.iter().find(|id| !known(id)) {
            return Some(format!("there is no invariant {id}"));
        }
        self.signatures().find_map(Signature::flaw)
    }
}

impl Kernels {
    fn include<K: Resolver + ?Sized>(&self, release: &str, kernel: &K) -> bool {
        self.releases.iter().any(|pattern| like(pattern, release))
            && self.symbols.iter().all(|name| kernel.has(name))
    }
}

/// Whether `text` is like `pattern`, in which `*` stands for any text, also none.
fn like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::Invariant;
    use super::super::testkit::{Kit, kernel};
    use super::*;

    const C: u64 = 3 << 32 | 1;
    const EXIT_PATH: u64 = 0xffff_ffff_8100_1234;

    /// A bug made up for the test: a request in the exit path is answered for cookie 0.
    const MADE_UP: &str = "
- id: F001
  title: a request behind the reset is answered for cookie 0
  invariants: [C4, C7]
  kernels:
    releases: ['7.2.*', '7.3-rc*']
    symbols: [exit_path]
  signature:
    instruction: [exit_path]
    events:
      - { kind: sample, task: t, cookie: c }
      - { kind: deferred, task: t, cookie: c }
      - { kind: sample, task: t, cookie: c, interrupted: [exit_path, user] }
      - { kind: deferred, task: t, cookie: 0, frames: 2 }
";

    struct Names;

    impl Resolver for Names {
        fn function(&self, address: u64) -> Option<String> {
            match address & !0xfff {
                0xffff_ffff_8100_1000 => Some("exit_path".into()),
                0xffff_ffff_8100_2000 => Some("elsewhere".into()),
                _ => None,
            }
        }

        fn has(&self, name: &str) -> bool {
            name == "exit_path"
        }
    }

    fn story(late: u64, other_task: bool) -> Kit {
        let mut kit = Kit::new(1);
        let tid = if other_task { 1002 } else { 1001 };
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_2004));
        kit.deferred(0, 1001, C, &[0x40, 0x80]);
        kit.inject(0, tid, C, kernel(late));
        kit.deferred(0, tid, 0, &[0x40, 0x80]);
        kit
    }

    fn found(list: &Findings, kit: &Kit) -> Vec<Option<FindingId>> {
        let trace = kit.trace();
        let checks: [&dyn Invariant; 2] = [
            &super::super::c4_format::Format,
            &super::super::c7_origin::Origin,
        ];
        let violations = checks.into_iter().flat_map(|i| match i.check(&trace) {
            super::super::Check::Violated(list) => list,
            _ => Vec::new(),
        });
        violations
            .map(|v| list.match_finding(&v, &trace, &Names))
            .collect()
    }

    #[test]
    fn the_embedded_list_is_well_formed_and_written_up() {
        let list = Findings::embedded().expect("well-formed");
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/findings");
        for finding in list.iter() {
            let page = root.join(format!("{}.md", finding.id));
            assert!(page.is_file(), "{} is missing", page.display());
        }
    }

    #[test]
    fn exactly_the_sequence_matches() {
        let list = Findings::parse(MADE_UP).expect("well-formed");
        let id = Some(FindingId("F001".into()));
        assert_eq!(found(&list, &story(EXIT_PATH, false)), [id.clone(), id]);
    }

    #[test]
    fn anything_else_does_not() {
        let list = Findings::parse(MADE_UP).expect("well-formed");
        let none = |kit: &Kit| {
            let found = found(&list, kit);
            assert!(!found.is_empty() && found.iter().all(Option::is_none));
        };
        none(&story(0xffff_ffff_8100_2004, false));
        none(&story(0xffff_ffff_8100_9000, false));
        none(&story(EXIT_PATH, true));
        // Another number of events, another cookie of one of them, other frames.
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(EXIT_PATH));
        kit.deferred(0, 1001, 0, &[0x40, 0x80]);
        none(&kit);
        let mut kit = story(EXIT_PATH, false);
        kit.drop_last();
        kit.deferred(0, 1001, 0, &[0x40]);
        none(&kit);
    }

    #[test]
    fn another_kernel_does_not() {
        let list = Findings::parse(MADE_UP).expect("well-formed");
        let mut trace = story(EXIT_PATH, false).trace();
        trace.release = "7.4.1".into();
        let check = super::super::c7_origin::Origin.check(&trace);
        let super::super::Check::Violated(violations) = check else {
            panic!("not violated");
        };
        assert_eq!(list.match_finding(&violations[0], &trace, &Names), None);
        let probed = MADE_UP.replace("symbols: [exit_path]", "symbols: [other]");
        let list = Findings::parse(&probed).expect("well-formed");
        trace.release = "7.2.1".into();
        assert_eq!(list.match_finding(&violations[0], &trace, &Names), None);
    }

    #[test]
    fn malformed_entries_are_refused() {
        const REPORT: &str = "  also:\n    - report: ['BUG: ', 'Read']\n";
        let reported = format!("{MADE_UP}{REPORT}");
        assert!(Findings::parse(&reported).is_ok());
        for to in [
            "report: []",
            "report: ['BUG: ', '']",
            "report: ['BUG: ']\n      instruction: [exit_path]",
            "report: ['BUG: ']\n      log: [{ kind: cancel }]",
            "log: []",
            "log: [{ kind: cancel, cookie: c }]",
            "log: [{ kind: cancel, interrupted: [exit_path] }]",
        ] {
            let text = reported.replace("report: ['BUG: ', 'Read']", to);
            assert_ne!(text, reported);
            assert!(Findings::parse(&text).is_err(), "{to}");
        }
        for (from, to) in [
            ("id: F001", "id: one"),
            ("[C4, C7]", "[C4, C99]"),
            ("[C4, C7]", "[]"),
            ("title:", "headline:"),
            (
                "kind: deferred, task: t, cookie: c",
                "kind: deferred, task: t",
            ),
            (
                "kind: sample, task: t, cookie: c }",
                "kind: fork, frames: 2 }",
            ),
            ("frames: 2", "frame: 2"),
            ("['7.2.*', '7.3-rc*']", "[]"),
        ] {
            let text = MADE_UP.replacen(from, to, 1);
            assert_ne!(text, MADE_UP);
            assert!(Findings::parse(&text).is_err(), "{to}");
        }
        let twice = format!("{MADE_UP}{MADE_UP}");
        let error = Findings::parse(&twice).expect_err("a double id");
        assert_eq!(error.to_string(), "finding F001: the id is used twice");
    }

    /// F004 as listed: a thread asks with an inherited event where no way leads back, and exits.
    #[test]
    fn an_exit_with_an_inherited_event_is_f004_and_nothing_else_is() {
        const SYS_EXIT: u64 = 0xffff_ffff_8100_1000;
        struct Exits;
        impl Resolver for Exits {
            fn function(&self, address: u64) -> Option<String> {
                (address == SYS_EXIT).then(|| "__x64_sys_exit".into())
            }
            fn has(&self, _: &str) -> bool {
                true
            }
        }
        let list = Findings::embedded().expect("well-formed");
        let found = |at: u64, inherits: bool, exits: bool| {
            let mut kit = Kit::new(1);
            kit.inject(0, 1001, C, kernel(at));
            if exits {
                kit.exit(0, 1001);
            }
            let mut trace = kit.trace();
            trace.release = "7.3.4-test".into();
            for spec in { trace.tracing.as_mut() }
                .into_iter()
                .flat_map(|it| &mut it.events)
            {
                spec.inherit = inherits;
            }
            let checks: [&dyn Invariant; 2] = [
                &super::super::m1_completeness::Completeness,
                &super::super::x1_exit_answered::ExitAnswered,
            ];
            let violations = checks.into_iter().flat_map(|i| match i.check(&trace) {
                super::super::Check::Violated(list) => list,
                _ => Vec::new(),
            });
            let ids = violations.map(|v| list.match_finding(&v, &trace, &Exits));
            ids.map(|id| id.map_or_else(String::new, |id| id.to_string()))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(SYS_EXIT, true, true), ["F004", "F004"]);
        assert_eq!(found(SYS_EXIT, false, true), ["", ""]);
        assert_eq!(found(SYS_EXIT + 0x1000, true, true), ["", ""]);
        assert_eq!(found(SYS_EXIT, true, false), [""]);
    }

    #[test]
    fn patterns() {
        assert!(like("7.2.13-cloud", "7.2.13-cloud"));
        assert!(!like("7.2.1", "7.2.13"));
        assert!(like("7.2.*", "7.2.13+deb14-cloud-amd64"));
        assert!(!like("7.2.*", "7.20.1"));
        assert!(like("7.*-cloud-*", "7.2.13+deb14-cloud-amd64"));
        assert!(!like("7.*-cloud-*", "7.2.13+deb14-amd64"));
        assert!(like("*-amd64", "7.2-amd64") && like("*", "") && !like("", "7"));
    }
}
