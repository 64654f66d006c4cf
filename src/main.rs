//! The `unwindlab` command; see [`unwindlab::cli`]. As pid 1 of the emulated KVM host's outer
//! machine, the same binary is its init; see [`unwindlab::host::init`].

use std::process::ExitCode;

use unwindlab::cli;
use unwindlab::host::{init, lab::ThisMachine};

fn main() -> ExitCode {
    if init::is_outer_init() {
        init::main();
        return ExitCode::FAILURE;
    }
    cli::main(&ThisMachine)
}
