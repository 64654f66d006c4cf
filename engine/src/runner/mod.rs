//! Plan to recording: boots the machine, makes the injections, reads the rings.
//!
//! `trial` asks the guest's driver what happens, and gives up by its `clock`. `stops` tells what a
//! stop of a vCPU calls for. The `injector` makes what is due by its `triggers`, with its `actions`
//! or the `helper` in the guest, and notes it in its `books`.

mod actions;
mod arrivals;
mod blocks;
mod books;
pub mod boot;
mod clock;
mod corruption;
mod delays;
mod error;
pub mod explore;
mod freezer;
mod helper;
mod injector;
mod rate;
mod sightings;
mod stops;
mod trial;
mod triggers;
