//! The mutation score: what became of all generated mutants.

mod row;

pub use row::{Control, Kill, MutationFate, MutationRecord, MutationRow, Survival};
