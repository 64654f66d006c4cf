//! The guest's agent: everything [`unwindlab_abi`] says the guest does.
//!
//! [`session`] is the conversation with the host; [`perf`] opens the events; [`lab`] drives the
//! kernel's lab client; [`workload`] runs the threads whose stacks [`chain`] makes known by
//! construction; [`helper`] does to them what the host says meanwhile.

pub mod blocker;
pub mod call;
pub mod chain;
pub mod fuse;
pub mod helper;
pub mod interrupts;
pub mod kernel_threads;
pub mod kmsg;
pub mod lab;
pub mod mailbox;
pub mod memory;
pub mod pages;
pub mod perf;
pub mod perf_tool;
pub mod physical;
pub mod ports;
pub mod processes;
pub mod requests;
pub mod session;
pub mod shared;
pub mod swap;
pub mod system;
pub mod userfault;
pub mod workload;
