//! The native KVM host: this process, this kernel's /dev/kvm. Also what runs inside the emulated
//! one.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

use unwindlab_vmm::{Machine, MachineConfig};

use super::{Executor, HostError, agent};
use crate::runner::trial::Trial;
use crate::runner::{TrialPlan, TrialProgress};
use crate::trace::Recording;
use crate::trace::recording::TrialEnd;
use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};

/// Runs trials on this machine's KVM.
#[derive(Debug)]
pub struct Native {
    kvm: unwindlab_vmm::Kvm,
    kernels: HashMap<String, PathBuf>,
    initrd: Vec<u8>,
}
