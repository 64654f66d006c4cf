//! What a sweep found so far, in a file, for another one to go on from.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::plan::sweep::{Point, Tried};

/// Raised when the form changes.
pub const VERSION: u32 = 1;

/// A sweep that is not over, as a file (JSON).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Kept {
    /// [`VERSION`].
    pub version: u32,
    /// What was swept.
    pub of: Of,
    /// Points that were tried.
    pub tried: BTreeSet<Point>,
    /// How many of them had nothing wrong.
    pub passed: u32,
    /// What went wrong.
    pub failures: Vec<KeptFailure>,
    /// Invariants that were exercised, and on how many points.
    pub exercised: BTreeMap<String, u32>,
}

/// What is swept: another one of these is another sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Of {
    /// The scenario's YAML.
    pub scenario: String,
    /// Content hash of the kernel's image.
    pub kernel: String,
    /// Whether the request is made.
    pub asks: bool,
    /// Where the path begins, if not at the scenario's own request.
    pub from: Option<String>,
    /// Two NMIs a trial.
    pub pairs: bool,
}

/// One distinct failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KeptFailure {
    /// `guest-panic` or `hang`.
    pub died: Option<String>,
    /// Invariants, each with the finding it is, if it is one.
    pub fell: BTreeSet<(String, Option<String>)>,
    /// The points that show it.
    pub points: BTreeSet<Point>,
    /// What the first of them showed.
    pub messages: Vec<String>,
}

impl Kept {
    /// Takes a file's text; it has to be of the same sweep.
    ///
    /// # Errors
    /// In one line, what is wrong with it.
    pub fn parse(text: &str, of: &Of) -> Result<Self, String> {
        let kept: Self =
            serde_json::from_str(text).map_err(|error| format!("no file of a sweep: {error}"))?;
        if kept.version != VERSION {
            let version = kept.version;
            return Err(format!(
                "a sweep's file of version {version}, this program knows {VERSION}"
            ));
        }
        let differs = [
            (kept.of.scenario != of.scenario, "scenario"),
            (kept.of.kernel != of.kernel, "kernel"),
            (kept.of.asks != of.asks, "choice of --no-request"),
            (kept.of.from != of.from, "beginning (--from)"),
            (kept.of.pairs != of.pairs, "choice of --pairs"),
        ];
        match differs.into_iter().find(|(differs, _)| *differs) {
            Some((_, what)) => Err(format!(
                "it tells of a sweep with another {what}: name another file, or remove it"
            )),
            None => Ok(kept),
        }
    }

    /// What need not be tried again.
    #[must_use]
    pub fn done(&self) -> BTreeSet<Tried> {
        self.tried.iter().map(Point::tried).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::sweep::{Boundary, Then};

    fn kept() -> Kept {
        let at = |rip| Boundary { rip, occurrence: 2 };
        let point = Point {
            number: 3,
            at: at(0xffff_ffff_8100_0000),
            then: Some(Then {
                number: 1,
                at: at(0xffff_ffff_8100_0004),
            }),
        };
        Kept {
            version: VERSION,
            of: Of {
                scenario: "name: s".to_owned(),
                kernel: "abc".to_owned(),
                asks: true,
                from: None,
                pairs: true,
            },
            tried: [point].into(),
            passed: 0,
            failures: vec![KeptFailure {
                died: None,
                fell: [("C4".to_owned(), Some("F001".to_owned()))].into(),
                points: [point].into(),
                messages: vec!["C4 violated".to_owned()],
            }],
            exercised: [("C4".to_owned(), 1)].into(),
        }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let kept = kept();
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(Kept::parse(&text, &kept.of), Ok(kept));
    }

    #[test]
    fn another_sweep_is_told() {
        let kept = kept();
        let text = serde_json::to_string(&kept).unwrap();
        let of = Of {
            kernel: "def".to_owned(),
            ..kept.of.clone()
        };
        let error = Kept::parse(&text, &of).unwrap_err();
        assert!(error.contains("another kernel"), "{error}");
        let of = Of {
            pairs: false,
            ..kept.of
        };
        let error = Kept::parse(&text, &of).unwrap_err();
        assert!(error.contains("--pairs"), "{error}");
        let error = Kept::parse("{}", &of).unwrap_err();
        assert!(error.contains("no file of a sweep"), "{error}");
    }
}
