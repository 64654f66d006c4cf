//! What the tracers wrote, as ordered events: `Recording` (raw bytes as read from guest memory)
//! in, [`Trace`] out.
//!
//! [`ring`] reads a live ring out of guest memory; [`framing`] cuts its bytes into records,
//! [`layout`] finds the event that wrote each, [`record`] takes them apart; [`decode`] merges all
//! rings into a [`Trace`]; [`lab`] is the log of the kernel's lab client; [`canonical`] is its form in snapshots.

pub mod canonical;
#[cfg(test)]
mod crosscheck_tests;
pub mod decode;
#[cfg(test)]
mod encoder;
mod fields;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod framing;
pub mod lab;
pub mod layout;
pub mod model;
pub mod record;
#[cfg(test)]
mod record_tests;
pub mod recording;
pub mod ring;
mod sample;
pub mod sample_id;
pub mod script;
pub mod symbolize;

pub use canonical::SnapshotStyle;
pub use lab::{LabEvent, LabKind, LabLog, LabTrace};
pub use model::{Event, EventKind, Trace};
pub use recording::Recording;
pub use ring::{GuestRead, RingReader};
