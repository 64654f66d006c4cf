//! A small virtual machine monitor for x86-64 Linux guests on KVM, made for putting events
//! exactly where they hurt: every vCPU is a thread that is either running or stopped *with a
//! reason*, and a stopped vCPU can be looked at, given breakpoints and single steps, and
//! given an NMI that KVM itself confirms.
//!
//! There is no PCI, no virtio and no firmware: an ELF kernel is entered directly, with a
//! serial console, ACPI tables for several CPUs, KVM's own interrupt controllers, and a range
//! of *doorbell* ports by which the guest talks to the caller.
//!
//! One thread, the caller's, takes all decisions. See [`Machine`] for the life of a machine
//! and [`Stop`] for the reasons a vCPU stops.
#![deny(missing_docs)]

pub mod boot;
mod cpuid;
mod debug;
mod devices;
mod exit;
mod handle;
mod inject;
mod irqchip;
mod kick;
mod machine;
mod memory;
mod msr;
pub mod probe;
mod slot;
mod step;
mod thread;
mod translate;
mod vcpu;
mod vm;

pub use boot::Kernel;
pub use debug::{BreakpointError, MAX_BREAKPOINTS};
pub use devices::serial::Console;
pub use exit::Stop;
pub use handle::{Pause, VcpuHandle};
pub use inject::{InjectError, NmiReceipt, NmiState};
pub use kvm_bindings::{kvm_regs as Regs, kvm_sregs as Sregs};
pub use kvm_ioctls::Kvm;
pub use machine::{BuildError, MAX_VCPUS, Machine, MachineConfig, VcpuEvent};
pub use memory::{AccessError, MAX_MEMORY_MIB, MIN_MEMORY_MIB, Memory, MemoryError};
pub use slot::{PauseError, ResumeError};
pub use thread::Run;
pub use translate::AddressSpace;
pub use vcpu::InspectError;
pub use vm::{OpenKvmError, VmError, open_kvm};
