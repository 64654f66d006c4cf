//! Plan to recording: boots the machine, makes the injections, reads the rings.

mod actions;
mod arrivals;
pub mod boot;
mod commands;
mod corrupt;
mod delays;
pub mod error;
pub mod exits;
pub mod explore;
mod frozen;
mod rate;
mod sightings;
mod stops;
pub mod trial;
