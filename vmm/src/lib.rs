//! A small virtual machine monitor for x86-64 Linux guests on KVM, made to put events at exact
//! places: every vCPU is either running or stopped *with a reason*, and a stopped vCPU can be
//! inspected, given breakpoints and single steps, and given an NMI that KVM itself confirms.
//!
//! There is no PCI, no virtio and no firmware: the VMM enters an ELF kernel directly. The guest has
//! a serial console, ACPI tables for several CPUs, KVM's own interrupt controllers, and a range of
//! *doorbell* ports by which it talks to the caller.
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
//!
//! # Threads
//!
//! One thread, the caller's, is the *controller*: it takes all decisions and owns the [`Machine`].
//! Each vCPU has a thread that only runs it. The vCPU itself, with its file descriptor, moves
//! between the two by message, so it has one owner at a time:
//!
//! ```text
//! controller   -- vCPU, how far to run it ------>   thread of the vCPU
//! (stopped)    <- vCPU, why it stopped ----------   (running: KVM_RUN, devices, counters)
//! ```
//!
//! The controller can only inspect or change a vCPU that it owns; everything else is an error that
//! says so. To stop a running vCPU it sets `immediate_exit` in the vCPU's shared page and sends the
//! thread a signal. A vCPU that stops by itself makes an event, which [`Machine::next_event`]
//! delivers once; a vCPU with an undelivered event cannot be resumed. With [`Machine::run_here`]
//! the only vCPU of a machine runs on the controller's own thread instead, while that waits for it.
//!
//! The threads share three things: guest [`Memory`] (only ever copied from and to), the serial port
//! (behind a lock), and `immediate_exit` (an atomic).
//!
//! # Hostile guests
//!
//! The guest is not trusted. All its memory is accessed with bounds checks, its page tables are
//! walked with a fixed number of levels, and everything that it can make grow has a limit. What a
//! guest does becomes a [`Stop`], never a panic.
//!
//! # Rooms
//!
//! The modules, lowest first. Each uses only those above it in this list; a test of the workspace,
//! `tests/layers.rs`, reads the list from here and the imports from the files.
//!
//! - `x86`: constants of the architecture
//! - `memory`: guest RAM, and addresses by the guest's page tables
//! - `kvm`: /dev/kvm, the VM, CPUID, MSRs
//! - `devices`: the serial port, and which I/O port belongs to whom
//! - `boot`: the kernel and what it needs in memory, without firmware
//! - `inject`: NMIs and interrupts, confirmed by KVM
//! - `pmu`: synthetic performance counters
//! - `debug`: hardware breakpoints and steps of one vCPU, and the bytes of one trap
//! - `returns`: returns to user mode, executed here and noted
//! - `sysenter`: what QEMU makes of that instruction, mended
//! - `vcpu`: one vCPU: its state, and running it until it stops
//! - `threads`: a thread for each vCPU, their messages, and the events
//! - `traps`: breakpoints of all vCPUs, by hardware or planted traps
//! - `checkpoint`: the state of RAM, vCPUs and devices
//! - `machine`: all of it as one machine, which the controller owns
//! - [`probe`]: whether a KVM can run an unmodified kernel
//! - [`checks`]: the VMM's own checks of a KVM, by tiny guests
#![deny(missing_docs)]

mod boot;
mod checkpoint;
pub mod checks;
mod debug;
mod devices;
mod inject;
mod kvm;
mod machine;
mod memory;
mod pmu;
pub mod probe;
mod returns;
mod sysenter;
mod threads;
mod traps;
mod vcpu;
mod x86;

pub use boot::{BootError, Kernel, KernelError, LINUX_CMDLINE, ParamsError};
pub use checkpoint::{Checkpoint, CheckpointError, Restored, host_tsc};
pub use debug::{DataAccess, DataBreakpoint, TrapError};
pub use devices::serial::{CONSOLE_LIMIT, Console};
pub use inject::{InjectError, NmiReceipt, NmiState};
pub use kvm::cpuid::on_tcg;
pub use kvm::vm::{StillVm, VmError};
pub use kvm::{OpenKvmError, open_kvm};
pub use kvm_bindings::{kvm_regs as Regs, kvm_sregs as Sregs};
pub use kvm_ioctls::Kvm;
pub use machine::{BuildError, Machine, MachineConfig, MendError, ReturnWatchError, VcpuHandle};
pub use memory::{AccessError, AddressSpace, Memory, MemoryError};
pub use pmu::{CounterModel, Pmu, PmuError, SiteError, rdpmc_sites, synthetic_msrs};
pub use returns::{PlantError, ReturnNote, ReturnWatch};
pub use sysenter::SysenterError;
pub use threads::{Pause, PauseError, ResumeError, VcpuEvent};
pub use traps::BreakpointError;
pub use vcpu::{
    Access, AccessKind, InspectError, OverflowError, OverflowReceipt, Run, Stop, Watched,
};
