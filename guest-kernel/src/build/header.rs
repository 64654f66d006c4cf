//! The header of a built-in patch: `Key: value` lines before the diff. A line that begins with a
//! blank continues the value before it. guest-kernel/patches/README.md lists the keys.

use std::collections::BTreeMap;

use super::embedded::{self, PatchKind};
use super::patch::Patch;

/// A deliberate bug.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutant {
    /// Its name.
    pub name: String,
    /// Invariants of which at least one must be violated.
    pub falls: Vec<String>,
    /// The scenarios that should kill it; empty for the whole library.
    pub scenarios: Vec<String>,
    /// The sweep that should kill it, as the arguments of `unwindlab sweep`, if a single NMI can
    /// show the bug.
    pub sweep: Option<String>,
    /// The patches that the kernel must have, as `proposal:NAME` or `fix:F001`; none for a mutant of the
    /// kernel itself.
    pub of: Vec<String>,
    /// What it changes, and what the kernel then does wrong.
    pub what: String,
    /// The patch itself.
    pub patch: Patch,
}

/// A design alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// The design question that it answers differently: `cookie`, `clear` or `answer`.
    pub axis: String,
    /// What it changes.
    pub what: String,
    /// Who proposed it, and where.
    pub argued: String,
    /// The invariant or measurement that shows the difference from the kernel's own design.
    pub tells: String,
    /// The patch itself.
    pub patch: Patch,
}

/// A fix of a finding, as maintainers are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// The finding.
    pub name: String,
    /// The subject of its mail: `unwind: Do this`.
    pub subject: String,
    /// What is wrong without it.
    pub problem: String,
    /// What it changes.
    pub what: String,
    /// Why that is right.
    pub why: String,
    /// A mail that it refers to.
    pub link: Option<String>,
    /// The patch itself.
    pub patch: Patch,
}

/// A built-in patch lacks a key in its header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{patch} has no {key}: in its header")]
pub struct HeaderError {
    patch: String,
    key: &'static str,
}

/// All mutants, by name.
///
/// # Errors
/// [`HeaderError`].
pub fn mutants() -> Result<Vec<Mutant>, HeaderError> {
    let read = |(patch, header): (Patch, Header)| {
        Ok(Mutant {
            name: header.one("Mutant")?,
            falls: header.list("Falls")?,
            scenarios: header.list("Scenario").unwrap_or_default(),
            sweep: header.one("Sweep").ok(),
            of: header.list("Of").unwrap_or_default(),
            what: header.one("What")?,
            patch,
        })
    };
    all(PatchKind::Mutant).map(read).collect()
}

/// All variants, by axis and name.
///
/// # Errors
/// [`HeaderError`].
pub fn variants() -> Result<Vec<Variant>, HeaderError> {
    let read = |(patch, header): (Patch, Header)| {
        Ok(Variant {
            name: header.one("Variant")?,
            axis: header.one("Axis")?,
            what: header.one("What")?,
            argued: header.one("Argued")?,
            tells: header.one("Tells")?,
            patch,
        })
    };
    let mut variants: Vec<Variant> = all(PatchKind::Variant)
        .map(read)
        .collect::<Result<_, HeaderError>>()?;
    variants.sort_by(|a, b| (&a.axis, &a.name).cmp(&(&b.axis, &b.name)));
    Ok(variants)
}

/// All fixes, by the findings.
///
/// # Errors
/// [`HeaderError`].
pub fn fixes() -> Result<Vec<Fix>, HeaderError> {
    let read = |(patch, header): (Patch, Header)| {
        Ok(Fix {
            name: header.one("Fix")?,
            subject: header.one("Subject")?,
            problem: header.one("Problem")?,
            what: header.one("What")?,
            why: header.one("Why")?,
            link: header.one("Link").ok(),
            patch,
        })
    };
    all(PatchKind::Fix).map(read).collect()
}

fn all(kind: PatchKind) -> impl Iterator<Item = (Patch, Header)> {
    embedded::patches(kind)
        .into_iter()
        .filter_map(move |name| embedded::patch(kind, name))
        .map(|patch| {
            let header = Header::parse(&patch);
            (patch, header)
        })
}

/// The lines before the diff.
#[derive(Debug)]
struct Header {
    /// The patch's name.
    patch: String,
    values: BTreeMap<String, String>,
}

impl Header {
    fn parse(patch: &Patch) -> Self {
        let text = String::from_utf8_lossy(&patch.content);
        let mut values = BTreeMap::new();
        let mut last: Option<String> = None;
        for line in text.lines().take_while(|line| !line.is_empty()) {
            if let (Some(more), Some(key)) = (line.strip_prefix(' '), &last) {
                if let Some(value) = values.get_mut(key) {
                    let value: &mut String = value;
                    value.push(' ');
                    value.push_str(more.trim());
                }
            } else if let Some((key, value)) = line.split_once(':') {
                values.insert(key.to_owned(), value.trim().to_owned());
                last = Some(key.to_owned());
            }
        }
        Self {
            patch: patch.name.clone(),
            values,
        }
    }

    fn one(&self, key: &'static str) -> Result<String, HeaderError> {
        self.values
            .get(key)
            .filter(|value| !value.is_empty())
            .cloned()
            .ok_or_else(|| HeaderError {
                patch: self.patch.clone(),
                key,
            })
    }

    fn list(&self, key: &'static str) -> Result<Vec<String>, HeaderError> {
        let text = self.one(key)?;
        let items = text.split(',').map(|item| item.trim().to_owned());
        Ok(items.filter(|item| !item.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_header() {
        let patch = Patch {
            name: "mutant:x".to_owned(),
            content: b"Mutant: x\nFalls: C4,  M1\nWhat: one\n two\n\n--- a/x: y\n".to_vec(),
        };
        let header = Header::parse(&patch);
        assert_eq!(header.list("Falls").unwrap(), ["C4", "M1"]);
        assert_eq!(header.one("What").unwrap(), "one two");
        assert_eq!(
            header.one("Tells").unwrap_err().to_string(),
            "mutant:x has no Tells: in its header"
        );
        assert!(header.one("--- a/x").is_err());
    }

    #[test]
    fn every_built_in_patch_has_its_header_and_its_own_name() {
        for mutant in mutants().unwrap() {
            assert_eq!(mutant.patch.name, format!("mutant:{}", mutant.name));
            for of in mutant.of {
                let (kind, name) = match of.split_once(':').unwrap() {
                    ("proposal", name) => (PatchKind::Proposal, name),
                    ("fix", name) => (PatchKind::Fix, name),
                    _ => panic!("{of}"),
                };
                assert!(embedded::patch(kind, name).is_some(), "{of}");
            }
        }
        for variant in variants().unwrap() {
            assert_eq!(variant.patch.name, format!("variant:{}", variant.name));
            assert!(["cookie", "clear", "answer"].contains(&variant.axis.as_str()));
        }
        for fix in fixes().unwrap() {
            assert_eq!(fix.patch.name, format!("fix:{}", fix.name));
            assert!(fix.subject.len() <= 75, "{}", fix.subject);
        }
        for (patch, header) in all(PatchKind::Proposal) {
            let name = header.one("Proposal").unwrap();
            assert_eq!(patch.name, format!("proposal:{name}"));
            for key in ["What", "Argued", "Tells"] {
                header.one(key).unwrap();
            }
        }
    }
}
