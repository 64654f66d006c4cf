//! What is embedded (src/build/embedded.rs) is embedded again when a file comes or goes.

fn main() {
    for path in ["build.rs", "client", "config", "patches", "../reproducers"] {
        println!("cargo::rerun-if-changed={path}");
    }
}
