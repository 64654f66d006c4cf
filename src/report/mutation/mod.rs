//! The mutation score: what became of all generated mutants.
//!
//! Each mutant counts as one of these ([`Standing`]):
//!
//! | it | counts as |
//! |---|---|
//! | does not compile | no code |
//! | has the objects of the kernel without it | same |
//! | has the objects of another mutant, which is tested for both | twin |
//! | was killed by a test | killed |
//! | was executed by a test and killed by none | survived, or argued if somebody has said why nobody could see it |
//! | was executed by no test | not covered, or argued |
//! | could not be tested, or not by all tests | untested |
//!
//! ```text
//! covered = killed + survived (argued or not)
//! tested  = covered + not covered (argued or not)
//! share of what is covered = covered / tested
//! score                    = killed / (covered - survivors that are argued)
//! ```
//!
//! What is untested is in neither fraction; as long as there is any, the score is not final, and
//! the summary says so. Of nothing there is no percentage. A tenth that is rounded up to 100 %
//! reads 99.9 %.
//!
//! An argument says that no test can kill the mutant. Where one does, the argument is wrong: the
//! mutant counts as killed, and the class is bad until the argument is deleted.
//!
//! A kill proves something only if the kernel without a mutant passes the same tests ([`Control`]).

mod counts;
mod diff;
mod line;
mod row;
mod score;
mod standing;
mod survivors;
mod tables;

pub use counts::{MutationCounts, Share};
pub(super) use diff::ChangedLines;
pub use row::{Control, Kill, MutationFate, MutationRecord, MutationRow, Survival};
pub use score::MutationScore;
pub use standing::Standing;
pub(super) use tables::MutationTable;

/// A file of the kernel's source, without a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path from the root of the source, as [`GeneratedMutant::file`] has it.
    ///
    /// [`GeneratedMutant::file`]: unwindlab_guest_kernel::build::generate::GeneratedMutant::file
    pub file: String,
    /// Its text.
    pub text: String,
}

#[cfg(test)]
pub(super) mod testkit;
