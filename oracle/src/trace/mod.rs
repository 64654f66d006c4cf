//! What the tracers wrote, as ordered events: a [`Recording`] (raw bytes as read from guest memory)
//! in, a [`Trace`] out.
//!
//! - [`ring`]: reads a live ring out of guest memory
//! - [`recording`]: everything brought home from one trial, undecoded
//! - [`framing`]: cuts the bytes of a ring into records
//! - [`record`]: takes one record apart
//! - `decode`: all rings of a recording, merged into a [`Trace`]
//! - [`model`]: the [`Trace`] and its events
//! - [`lab`]: the log of the kernel's lab client
//! - [`user_mode`]: what unwinding in user mode asked and answered
//! - [`witness`]: returns to user mode, noted from outside
//! - [`perf_data`]: the file that `perf record` writes
//! - [`script`]: the text that `perf script` prints
//! - [`canonical`]: the form of a trace in snapshots

pub mod canonical;
mod decode;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod flat_memory;
pub mod framing;
pub mod lab;
pub mod model;
pub mod perf_data;
pub mod record;
pub mod recording;
pub mod ring;
pub mod script;
mod symbolize;
pub mod tracefs;
pub mod user_mode;
pub mod witness;

pub use canonical::SnapshotStyle;
pub use lab::{LabEvent, LabKind, LabLog, LabTrace};
pub use model::{Event, EventKind, Trace};
pub use recording::Recording;
pub use ring::{GuestRead, RingReader};
pub use user_mode::{NonceRequest, NonceResult, UserModeTrace};
pub use witness::{UserReturn, Witness};
