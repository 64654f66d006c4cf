//! Has cargo build again what is embedded in the binary when a file of it changes, or is added.

fn main() {
    for path in ["build.rs", "scenarios", "snapshots", "docs/findings"] {
        println!("cargo::rerun-if-changed={path}");
    }
}
