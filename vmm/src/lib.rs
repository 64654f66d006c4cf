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
//!
//! # A whole virtual machine
//!
//! ```
//! use std::time::Duration;
//! use unwindlab_vmm::{Kernel, Machine, MachineConfig, Pmu, Run, Stop, open_kvm};
//!
//! // Says "hi" on the serial console and rings doorbell 0xe0 with 42, again and again.
//! let code = [
//!     0xba, 0xf8, 0x03, 0x00, 0x00, // mov edx, 0x3f8
//!     0xb0, b'h', 0xee, // mov al, 'h'; out dx, al
//!     0xb0, b'i', 0xee, // mov al, 'i'; out dx, al
//!     0xb8, 42, 0x00, 0x00, 0x00, // mov eax, 42
//!     0xe7, 0xe0, // out 0xe0, eax
//!     0xeb, 0xec, // jmp to the start
//! ];
//! let kvm = open_kvm()?;
//! let mut machine = Machine::build(
//!     &kvm,
//!     &MachineConfig {
//!         vcpus: 1,
//!         memory_mib: 4,
//!         kernel: Kernel::Flat { address: 0x10_0000, code: code.as_slice().into() },
//!         initrd: &[],
//!         cmdline: "",
//!         doorbell_ports: 0xe0..=0xe0,
//!         pmu: Pmu::None,
//!     },
//! )?;
//! machine.start()?;
//! for greetings in ["hi", "hihi"] {
//!     let event = machine.next_event(Duration::from_secs(10)).expect("the guest rings");
//!     assert_eq!(event.stop, Stop::Port { port: 0xe0, size: 4, value: 42 });
//!     assert_eq!(machine.console().snapshot(), greetings.as_bytes());
//!     let mut vcpu = machine.vcpu(event.vcpu).expect("it has just rung");
//!     assert_eq!(vcpu.regs()?.rip, 0x10_0012);
//!     vcpu.resume(Run::Continue)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

pub mod boot;
mod checkpoint;
mod cpuid;
mod debug;
mod devices;
mod exit;
mod handle;
mod here;
mod inject;
mod irqchip;
mod kick;
mod machine;
mod memory;
mod msr;
mod pmu;
pub mod probe;
mod slot;
mod step;
mod thread;
mod ticks;
mod timer;
mod translate;
mod traps;
mod vcpu;
mod vm;

pub use boot::{Kernel, LINUX_CMDLINE};
pub use checkpoint::{Checkpoint, CheckpointError, Restored};
pub use cpuid::on_tcg;
pub use debug::{BreakpointError, MAX_BREAKPOINTS};
pub use devices::serial::{CONSOLE_LIMIT, Console};
pub use exit::{Access, AccessKind, Stop, Watched};
pub use handle::{Pause, VcpuHandle};
pub use inject::{InjectError, NmiReceipt, NmiState};
pub use kvm_bindings::{kvm_regs as Regs, kvm_sregs as Sregs};
pub use kvm_ioctls::Kvm;
pub use machine::{BuildError, MAX_VCPUS, Machine, MachineConfig, VcpuEvent};
pub use memory::{AccessError, MAX_MEMORY_MIB, MIN_MEMORY_MIB, Memory, MemoryError};
pub use pmu::{OverflowError, OverflowReceipt, Pmu, PmuError, SiteError, rdpmc_sites};
pub use slot::{PauseError, ResumeError};
pub use thread::Run;
pub use translate::AddressSpace;
pub use vcpu::InspectError;
pub use vm::{OpenKvmError, VmError, open_kvm};
