//! Replay files: one trial of a sweep with all it takes to make it again.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::verdicts::Symptom;

/// Raised when the form changes.
pub const VERSION: u32 = 2;

/// One trial, as a file (JSON).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Replay {
    /// [`VERSION`].
    pub version: u32,
    /// The scenario's name, and its file's text.
    pub name: String,
    /// Its YAML.
    pub scenario: String,
    /// The kernel it failed on.
    pub kernel: ReplayKernel,
    /// Whether the path begins with the scenario's request.
    pub asks: bool,
    /// Where the path begins, if not at the scenario's request.
    pub from: Option<String>,
    /// Where the NMI came.
    pub place: ReplayPlace,
    /// Where a second one came, in the path as the first changed it.
    pub then: Option<ReplayPlace>,
    /// What fell: invariants, each with the finding it is, if it is one.
    pub fell: Vec<(String, Option<String>)>,
    /// `guest-panic` or `hang`, if the guest did not come to the trial's end.
    pub died: Option<String>,
}

/// How to get the kernel again: the options of the command line, files by their whole path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplayKernel {
    /// Content hash of the image.
    pub hash: String,
    /// `uname -r`.
    pub release: String,
    /// `--kernel`.
    pub kernel: Option<String>,
    /// `--tree`.
    pub tree: Option<PathBuf>,
    /// `--rev`.
    pub rev: Option<String>,
    /// `--source`.
    pub source: Option<String>,
    /// `--patch`.
    pub patch: Vec<String>,
    /// `--config`.
    pub config: Vec<String>,
}

/// An instruction boundary of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplayPlace {
    /// The function.
    pub function: String,
    /// Bytes from its start.
    pub offset: u64,
    /// Which time the path comes by there, from 1.
    pub occurrence: u32,
}

impl Replay {
    /// Whether a trial showed the same.
    #[must_use]
    pub fn is_shown(&self, symptom: &Symptom) -> bool {
        let fell: BTreeSet<_> = self.fell.iter().cloned().collect();
        symptom.fell == fell && symptom.died == self.died.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_the_same_invariants_with_the_same_findings() {
        let known = |finding: Option<&str>| ("C4".to_owned(), finding.map(str::to_owned));
        let replay = Replay {
            version: VERSION,
            name: "s".to_owned(),
            scenario: String::new(),
            kernel: ReplayKernel::default(),
            asks: true,
            from: None,
            then: None,
            place: ReplayPlace {
                function: "f".to_owned(),
                offset: 4,
                occurrence: 1,
            },
            fell: vec![known(Some("F001"))],
            died: None,
        };
        let symptom = |fell, died| Symptom {
            died,
            fell: [fell].into(),
        };
        assert!(replay.is_shown(&symptom(known(Some("F001")), None)));
        assert!(!replay.is_shown(&symptom(known(None), None)));
        assert!(!replay.is_shown(&symptom(known(Some("F001")), Some("hang"))));
        let text = serde_json::to_string(&replay).unwrap();
        assert_eq!(serde_json::from_str::<Replay>(&text).unwrap(), replay);
    }
}
