//! F: stacks without frame pointers, walked by SFrame sections.

pub(super) mod f1_every_instruction;
pub(super) mod f2_not_covered;
mod known;

pub use known::Shown;
