//! Fuzz targets: each reads bytes from outside as unwindlab does, and holds what must be true whatever they are.
//!
//! A target must not panic, and must end within the budgets of its runner. libFuzzer runs them (fuzz/run), and so does a test
//! on the pinned compiler (tests/stable.rs), which mutates the same corpora by [`mutate`]. See docs/fuzzing.md.

mod files;
mod guest;
mod kernels;
mod logs;
mod memory;
pub mod mutate;
mod plans;
mod recordings;
mod rings;
mod take;

/// A reader of bytes from outside.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of the folder of its corpus.
    pub name: &'static str,
    /// Reads these bytes.
    pub run: fn(&[u8]),
    /// The longest input that is tried.
    pub longest: usize,
}

const fn target(name: &'static str, run: fn(&[u8]), longest: usize) -> Target {
    Target { name, run, longest }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("ring", rings::ring, 8 << 10),
    target("records", rings::records, 16 << 10),
    target("lab-log", logs::lab_log, 16 << 10),
    target("user-mode", logs::user_mode, 16 << 10),
    target("tracefs", logs::tracefs, 16 << 10),
    target("perf-script", logs::perf_script, 8 << 10),
    target("recording", recordings::packed, 32 << 10),
    target("perf-data", recordings::perf_data, 32 << 10),
    target("recording-json", recordings::json, 32 << 10),
    target("session", guest::session, 16 << 10),
    target("page-tables", guest::page_tables, 8 << 10),
    target("printk", guest::printk, 8 << 10),
    target("channel", guest::channel, 16 << 10),
    target("scenario", files::scenario, 4 << 10),
    target("replay", files::replay, 8 << 10),
    target("resume", files::resume, 16 << 10),
    target("mails", files::mails, 4 << 10),
    target("image", kernels::image, 16 << 10),
    target("types", kernels::types, 16 << 10),
    target("findings", kernels::findings, 8 << 10),
    target("deb", kernels::deb, 8 << 10),
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|it| it.name == name)
}
