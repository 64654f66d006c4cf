//! Builds the guest's agent and tells `src/host/agent.rs` where it is.
//!
//! The agent is a program of its own, static and at fixed addresses, so it cannot be a
//! dependency: the same cargo builds it here, in a target directory of its own (this build holds
//! the lock of the usual one), with flags of its own.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "agent";
/// Static, because no loader exists in the guest; not position-independent, so that user
/// addresses are the same in every run. Flags are separated by 0x1f.
const RUSTFLAGS: &str = "-Ctarget-feature=+crt-static\x1f-Crelocation-model=static";

fn main() -> Result<(), Box<dyn Error>> {
    for path in [
        "build.rs",
        "Cargo.toml",
        "Cargo.lock",
        "rust-toolchain.toml",
        "guest-userspace",
        // Embedded in the binary too.
        "scenarios",
        "snapshots",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let target_dir = PathBuf::from(env::var("OUT_DIR")?).join("guest");
    let status = Command::new(env::var("CARGO")?)
        .current_dir(env::var("CARGO_MANIFEST_DIR")?)
        .args([
            "build",
            "--locked",
            "--quiet",
            "--package",
            "unwindlab-agent",
        ])
        .args(["--profile", PROFILE, "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS)
        // Set where this runs under `cargo clippy`, which would then check instead of build.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()?;
    if !status.success() {
        return Err(format!("building the guest's agent failed: {status}").into());
    }
    let agent = target_dir
        .join(TARGET)
        .join(PROFILE)
        .join("unwindlab-agent");
    println!("cargo::rustc-env=UNWINDLAB_AGENT={}", agent.display());
    Ok(())
}
