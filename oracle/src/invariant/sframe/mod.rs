//! F: stacks without frame pointers, walked by SFrame sections.

mod asks;
pub(super) mod f1_every_instruction;
pub(super) mod f2_not_covered;
pub(super) mod f3_hostile;
pub(super) mod f4_lives;
pub(super) mod f5_reads;
pub(super) mod known;

pub use known::Shown;
