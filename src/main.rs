//! The `unwindlab` command; see [`unwindlab::cli`]. As pid 1 of the emulated KVM host's outer
//! machine, the same binary is its init; see [`unwindlab_engine::host::emulated::init`]. On a native KVM host it
//! is the VMM's process; see [`unwindlab_engine::host::native::process`]. `bench` starts it as one machine; see
//! [`unwindlab_engine::measured::ours`].

use std::process::ExitCode;

use unwindlab::cli;
use unwindlab::host::this_machine::ThisMachine;
use unwindlab_engine::host::emulated::init;
use unwindlab_engine::host::native::process;
use unwindlab_engine::measured::ours;

fn main() -> ExitCode {
    if init::is_outer_init() {
        init::main();
        return ExitCode::FAILURE;
    }
    if process::is_vmm() {
        process::main();
        return ExitCode::SUCCESS;
    }
    if ours::is_machine() {
        ours::main();
        return ExitCode::FAILURE;
    }
    cli::main(&ThisMachine)
}
