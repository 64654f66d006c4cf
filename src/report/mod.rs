//! Verdicts to people and machines: [`judge`] decides, [`result`] holds what was decided,
//! [`table`] and [`failure`] show it, [`json`] and [`junit`] write it.

pub mod artifacts;
pub mod bench;
pub mod comparison;
pub mod coverage;
pub mod failure;
pub mod figures;
pub mod instructions;
pub mod json;
pub mod junit;
pub mod listing;
pub mod matrix;
pub mod names;
pub mod replay;
pub mod sweep;
pub mod table;

#[cfg(test)]
mod tests;
