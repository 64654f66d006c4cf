//! `--html`: a report as one file that needs no other and no network.
//!
//! Rust decides what is shown and writes it as JSON into the file; a script of ours (`assets/`), which is in the
//! file too, draws it. It makes nodes and text only, never markup from text.
//!
//! - [`run`]: the outcomes, and for each failure its [`mod@timeline`] and the [`code`] around its NMI
//! - [`sweep`]: a heat map over the path, its instructions and the [`mod@source`]
//! - [`matrix`]: mutants by scenarios and invariants; [`variants`]: figures as plots
//! - [`mutation`]: generated mutants beside the lines that they change
//! - [`page`]: the file around the JSON

mod code;
pub mod matrix;
pub mod mutation;
mod page;
mod records;
pub mod run;
mod source;
pub mod sweep;
mod timeline;
pub mod variants;

#[cfg(test)]
mod tests;
