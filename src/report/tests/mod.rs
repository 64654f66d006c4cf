//! How results are written down.

mod files;
mod showing;
