//! Choosing and starting the KVM host: where a trial's machine gets its KVM from.
//!
//! [`choice`] asks the probe, [`this_machine`] starts the host that it names: the engine's
//! [`native`](unwindlab_engine::host::native), which runs trials in a process on this machine's KVM, or its
//! [`emulated`](unwindlab_engine::host::emulated), which sends them to a Linux in QEMU.

mod builds;
mod cached_kernel;
pub mod choice;
mod doctor;
pub mod kernel_request;
pub mod provider;
pub mod this_machine;
