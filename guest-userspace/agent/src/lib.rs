//! The guest's agent: the guest's side of [`unwindlab_abi`].
//!
//! [`session`] talks to the host, [`perf`] opens the events, [`lab`] drives the kernel's lab
//! client, [`workload`] runs the threads whose stacks [`chain`] builds, and [`helper`] carries out
//! the host's commands on them.

pub mod blocker;
pub mod bpf;
pub mod call;
pub mod chain;
pub mod fuse;
pub mod helper;
pub mod interrupts;
pub mod kernel_threads;
pub mod kmsg;
pub mod lab;
pub mod mailbox;
pub mod mapped_file;
pub mod memory;
pub mod pages;
pub mod perf;
pub mod perf_tool;
pub mod physical;
mod pinned;
pub mod ports;
pub mod processes;
pub mod requests;
pub mod session;
pub mod shared;
mod signals;
pub mod survey;
pub mod swap;
pub mod system;
pub mod tracefs;
pub mod unwinders;
pub mod user_mode;
pub mod userfault;
pub mod workload;
