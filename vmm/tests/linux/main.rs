//! The machine with a real Linux kernel: `UNWINDLAB_TEST_VMLINUX` names its ELF file. Without
//! one, or where KVM cannot run one, this says that it skips.
//!
//! This very program is also the guest's init: the initrd holds a copy of it. Arguments are
//! parts of test names; only matching tests run then.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest_init;
mod host;
mod initrd;
mod lab;

use std::time::Instant;

const VMLINUX: &str = "UNWINDLAB_TEST_VMLINUX";

fn main() {
    if std::process::id() == 1 {
        guest_init::main();
    }
    let Some(lab) = lab::Lab::new(VMLINUX) else {
        return;
    };
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    for (name, test) in host::TESTS {
        if filters.is_empty() || filters.iter().any(|filter| name.contains(filter)) {
            let begin = Instant::now();
            println!("test {name} ...");
            test(&lab);
            println!("test {name} ... ok ({:.2?})", begin.elapsed());
        }
    }
}
