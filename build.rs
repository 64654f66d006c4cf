//! Says when the scenarios and snapshots that are embedded in the binary have changed.

fn main() {
    println!("cargo::rerun-if-changed=scenarios");
    println!("cargo::rerun-if-changed=snapshots");
}
