//! What the tracers wrote, as ordered events: `Recording` (raw bytes as read from guest memory)
//! in, [`Trace`] out.

pub mod model;
pub mod recording;

pub use model::{Event, EventKind, Trace};
pub use recording::Recording;
