//! `unwindlab doctor`: what would be used on this machine, and why. Nothing is fetched.

use std::fmt::Write as _;

use unwindlab_guest_kernel as kernels;
use unwindlab_guest_kernel::{Cache, KernelSpec};

use super::choice::KvmHost;
use super::choice::{Choice, choose};

/// The report, some lines of `what: which (why)`.
#[must_use]
pub fn report(cache: &Cache) -> String {
    let mut text = String::new();
    let mut line = |what: &str, which: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{what:<13} {which}");
    };
    let choice = choose(KvmHost::Auto);
    line(
        "KVM host",
        match &choice {
            Choice::Native { why, .. } => format!("native: {why}"),
            Choice::Emulated { why } => format!("emulated: {why}"),
            Choice::Impossible { why } => format!("none: {why}"),
        },
    );
    if matches!(choice, Choice::Emulated { .. }) {
        line(
            "QEMU",
            match kernels::qemu::find(cache) {
                Ok(Some(qemu)) => format!("{} ({})", qemu.version, qemu.origin),
                Ok(None) => "none yet; the first run gets one into the cache".to_owned(),
                Err(error) => format!("unusable: {error}"),
            },
        );
        line(
            "outer kernel",
            match kernels::outer::find(cache) {
                Ok(Some(outer)) => format!("{} ({})", outer.release, outer.origin),
                Ok(None) => "none yet; the first run gets one into the cache".to_owned(),
                Err(error) => format!("unusable: {error}"),
            },
        );
    }
    line(
        "kernel",
        match kernels::path(&KernelSpec::stock(), cache) {
            Ok(Some(image)) => format!("{} ({})", image.release, image.origin),
            Ok(None) => "none yet; the first run gets the newest stock one".to_owned(),
            Err(error) => format!("unusable: {error}"),
        },
    );
    line("cache", cache.root().display().to_string());
    text
}
