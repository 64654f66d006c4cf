//! All targets in one program that libFuzzer drives; `UNWINDLAB_FUZZ` names the target.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use unwindlab_fuzz::{Target, find};

/// What to run.
fn target() -> Option<&'static Target> {
    static TARGET: OnceLock<Option<&'static Target>> = OnceLock::new();
    *TARGET.get_or_init(|| find(&std::env::var("UNWINDLAB_FUZZ").unwrap_or_default()))
}

fuzz_target!(
    init: {
        if target().is_none() {
            eprintln!("UNWINDLAB_FUZZ names no target");
            std::process::exit(2);
        }
    },
    |data: &[u8]| {
        if let Some(target) = target() {
            (target.run)(data);
        }
    }
);
