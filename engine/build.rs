//! Builds the guest's agent and tells `engine/src/driver/image/` where it is.
//!
//! The agent is a separate program, static and at fixed addresses, so it cannot be a dependency.
//! The same cargo builds it here, with other flags, and in another target directory because this
//! build holds the lock of the usual one.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "agent";
/// Static, because no loader exists in the guest; not position-independent, so that user
/// addresses are the same in every run; with `.eh_frame` for unwinders in the guest. Flags are separated by 0x1f.
const RUSTFLAGS: &str =
    "-Ctarget-feature=+crt-static\x1f-Crelocation-model=static\x1f-Cforce-unwind-tables=yes";

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    for path in [
        "engine/build.rs",
        "Cargo.toml",
        "Cargo.lock",
        "rust-toolchain.toml",
        "guest-userspace",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    let target_dir = PathBuf::from(env::var("OUT_DIR")?).join("guest");
    let status = Command::new(env::var("CARGO")?)
        .current_dir(&root)
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
        // `cargo clippy` sets this, and cargo would then check instead of build.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()?;
    if !status.success() {
        return Err(format!("failed to build the guest's agent: {status}").into());
    }
    let agent = target_dir
        .join(TARGET)
        .join(PROFILE)
        .join("unwindlab-agent");
    println!("cargo::rustc-env=UNWINDLAB_AGENT={}", agent.display());
    Ok(())
}
