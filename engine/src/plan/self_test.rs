//! The self-test of a KVM: what the command gets to hear of it.

use serde::{Deserialize, Serialize};

/// The self-test got somewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SelfTestMessage {
    /// Where it runs. First message.
    About(AboutKvm),
    /// This check runs now.
    Begun(String),
    /// A check is over.
    Checked(Checked),
    /// All checks are over.
    Done,
    /// Nothing can be checked, for this reason.
    Failed(String),
}

/// Where a self-test runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutKvm {
    /// The CPU, in a line.
    pub cpu: String,
    /// The kernel that KVM belongs to, in a line.
    pub kernel: String,
    /// Each module of KVM with its parameters.
    pub modules: Vec<String>,
}

/// A check that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Its name.
    pub name: String,
    /// What came of it.
    pub verdict: CheckVerdict,
    /// How long it took, in the time of the machine it ran on.
    pub millis: u64,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckVerdict {
    /// All was as it must be.
    Ok,
    /// What was seen, and what was expected.
    Failed(String),
    /// Why it says nothing here.
    NotAvailable(String),
}

/// How many checks came to what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// All was as it must be.
    pub ok: usize,
    /// Something was not.
    pub failed: usize,
    /// They said nothing.
    pub not_available: usize,
}

impl Tally {
    /// Counts one more.
    pub const fn add(&mut self, verdict: &CheckVerdict) {
        match verdict {
            CheckVerdict::Ok => self.ok += 1,
            CheckVerdict::Failed(_) => self.failed += 1,
            CheckVerdict::NotAvailable(_) => self.not_available += 1,
        }
    }
}
