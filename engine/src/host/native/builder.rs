//! Builds machines: from a kernel that the KVM host was given, or an empty twin of one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_vmm::{
    BuildError, Kernel, Kvm, LINUX_CMDLINE, Machine, MachineConfig, Pmu, PmuError,
};

use crate::driver::image::guest_initrd;
use crate::host::perf_tool;
use crate::plan::{PmuPlan, TrialPlan};

/// The command line of every guest kernel, besides [`LINUX_CMDLINE`]. `mitigations=off` keeps
/// entries short and user and kernel in one page table; `oops=panic` makes an oops an end rather
/// than a guess; the rest avoids disturbances (watchdogs, DAMON) and slow probing.
const CMDLINE: &str = "nokaslr mitigations=off oops=panic reboot=t no_timer_check nowatchdog \
    nmi_watchdog=0 audit=0 selinux=0 apparmor=0 random.trust_cpu=on rcupdate.rcu_expedited=1 \
    8250.nr_uarts=1 damon_stat.enabled=0";

/// What machines are built from.
#[derive(Debug)]
pub struct MachineBuilder {
    kvm: Kvm,
    /// Images by content hash.
    kernels: HashMap<String, PathBuf>,
    initrd: Vec<u8>,
    /// The archive of the distribution's perf.
    perf_tool: Option<Vec<u8>>,
}

/// Why a machine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The KVM host was started for other kernels.
    #[error("the KVM host was not given kernel {0}")]
    UnknownKernel(String),
    /// The kernel's image cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    ReadKernel { path: PathBuf, source: io::Error },
    /// The scenario uses perf, which the KVM host was started without.
    #[error("the KVM host was not given perf")]
    NoPerf,
    /// This KVM host lacks a PMU that the scenario needs; another may have it.
    #[error(transparent)]
    Unsupported(PmuError),
    /// The VMM failed.
    #[error("cannot build the machine: {0}")]
    Build(#[source] BuildError),
}

impl From<MachineError> for TrialEnd {
    fn from(error: MachineError) -> Self {
        let reason = error.to_string();
        match error {
            MachineError::Unsupported(_) => Self::HostLacks { reason },
            _ => Self::Infra { reason },
        }
    }
}

impl MachineBuilder {
    /// With the kernels by content hash, and the archive of the distribution's perf where
    /// scenarios use it.
    ///
    /// # Errors
    /// When the guest's initramfs cannot be built.
    pub fn new(
        kvm: Kvm,
        kernels: HashMap<String, PathBuf>,
        perf_tool: Option<Vec<u8>>,
    ) -> io::Result<Self> {
        Ok(Self {
            kvm,
            kernels,
            initrd: guest_initrd()?,
            perf_tool,
        })
    }

    /// Another kernel, by its content hash.
    pub fn add_kernel(&mut self, hash: String, image: PathBuf) {
        self.kernels.insert(hash, image);
    }

    /// The image of a kernel by its content hash.
    ///
    /// # Errors
    /// [`MachineError::UnknownKernel`].
    pub fn kernel(&self, hash: &str) -> Result<&Path, MachineError> {
        let path = self.kernels.get(hash).map(PathBuf::as_path);
        path.ok_or_else(|| MachineError::UnknownKernel(hash.to_owned()))
    }

    /// A machine that boots the trial's kernel.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn machine(&self, plan: &TrialPlan) -> Result<Machine, MachineError> {
        let path = self.kernel(&plan.kernel)?;
        let image = File::open(path).map_err(|source| MachineError::ReadKernel {
            path: path.to_owned(),
            source,
        })?;
        let initrd = match (&plan.guest.perf_tool, &self.perf_tool) {
            (None, _) => Cow::Borrowed(self.initrd.as_slice()),
            (Some(_), Some(tool)) => Cow::Owned(perf_tool::behind(&self.initrd, tool)),
            (Some(_), None) => return Err(MachineError::NoPerf),
        };
        let rdpmc = match &plan.pmu {
            PmuPlan::Synthetic { rdpmc } => rdpmc.as_slice(),
            PmuPlan::None | PmuPlan::Host => &[],
        };
        self.build(plan, Kernel::File(&image), &initrd, rdpmc)
    }

    /// A machine that [`Self::machine`] would build, but with nothing in it, to take another's
    /// state.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn twin(&self, plan: &TrialPlan) -> Result<Machine, MachineError> {
        const HALT: &[u8] = &[0xf4];
        let nothing = Kernel::Flat {
            address: 1 << 20,
            code: HALT.into(),
        };
        self.build(plan, nothing, &[], &[])
    }

    fn build(
        &self,
        plan: &TrialPlan,
        kernel: Kernel<'_>,
        initrd: &[u8],
        rdpmc: &[u64],
    ) -> Result<Machine, MachineError> {
        let config = MachineConfig {
            vcpus: plan.vcpus,
            memory_mib: plan.memory_mib,
            kernel,
            initrd,
            cmdline: &cmdline(&plan.cmdline),
            doorbell_ports: MAILBOX_PORT..=MARK_PORT + 3,
            pmu: match &plan.pmu {
                PmuPlan::None => Pmu::None,
                PmuPlan::Synthetic { .. } => Pmu::Synthetic { rdpmc, model: None },
                PmuPlan::Host => Pmu::Host,
            },
        };
        let built = Machine::build(&self.kvm, &config);
        let mut machine = built.map_err(|error| match error {
            BuildError::Pmu(
                error @ (PmuError::Vendor { .. }
                | PmuError::NoHostPmu
                | PmuError::Capability { .. }),
            ) => MachineError::Unsupported(error),
            error => MachineError::Build(error),
        })?;
        machine.run_here();
        Ok(machine)
    }
}

/// The whole command line of a guest's kernel; with words that a scenario adds.
pub fn cmdline(words: &str) -> String {
    format!("{LINUX_CMDLINE} {CMDLINE} {words}")
}
