//! Plan to recording: boots the machine, makes the injections, reads the rings.
//!
//! A [`trial::Trial`] asks the guest's driver what happens and knows when to give up. What happens
//! goes to the [`injector`], which knows by its [`triggers`] when an injection is due, carries it out
//! by its [`actions`] (or the [`helper`] in the guest), and notes it in its [`books`].

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
