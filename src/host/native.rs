//! The native KVM host: this process on this kernel's /dev/kvm. Also what runs inside the
//! emulated one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};
use unwindlab_vmm::{
    BuildError, Kernel, Kvm, LINUX_CMDLINE, Machine, MachineConfig, Pmu, PmuError,
};

use super::{agent, perf_tool, told};
use crate::runner::plan::PmuPlan;
use crate::runner::trial::Trial;
use crate::runner::{Executor, InfraError, Interrupt, Progress, TrialPlan, TrialProgress};
use crate::sweep::{self, Message, SweepPlan};
use crate::trace::Recording;
use crate::trace::recording::TrialEnd;

/// What every guest kernel is told besides [`LINUX_CMDLINE`]. `mitigations=off` keeps entries
/// short and user and kernel in one page table; `oops=panic` makes an oops an end rather than a
/// guess; the rest keeps out what would only disturb (watchdogs, DAMON) or take time (probing).
pub const CMDLINE: &str = "nokaslr mitigations=off oops=panic reboot=t no_timer_check nowatchdog \
    nmi_watchdog=0 audit=0 selinux=0 apparmor=0 random.trust_cpu=on rcupdate.rcu_expedited=1 \
    8250.nr_uarts=1 damon_stat.enabled=0";

/// Runs trials on this kernel's KVM.
#[derive(Debug)]
pub struct Native {
    kvm: Kvm,
    kernels: HashMap<String, PathBuf>,
    initrd: Vec<u8>,
    /// The archive of the distribution's perf.
    perf_tool: Option<Vec<u8>>,
}

impl Native {
    /// A host whose KVM is known to be fit (see [`unwindlab_vmm::probe`]), with the kernels it
    /// can boot by content hash, and the archive of the distribution's perf where scenarios use it.
    ///
    /// # Errors
    /// When the guest's initramfs cannot be built.
    pub fn new(
        kvm: Kvm,
        kernels: HashMap<String, PathBuf>,
        perf_tool: Option<Vec<u8>>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            kvm,
            kernels,
            initrd: agent::guest_initrd()?,
            perf_tool,
        })
    }

    /// Runs one trial. All that can go wrong is an end of the recording.
    pub fn run(&self, plan: &TrialPlan, tell: &mut dyn FnMut(&TrialProgress) -> bool) -> Recording {
        match self.machine(plan) {
            Ok(machine) => Trial::new(plan, machine).run(tell),
            Err(end) => Recording {
                end,
                ..Recording::default()
            },
        }
    }

    /// Carries out a sweep.
    pub fn sweep(&self, plan: &SweepPlan, tell: &mut dyn FnMut(Message) -> bool) {
        let make = || {
            self.machine(&plan.trial).map_err(|end| match end {
                TrialEnd::Infra { reason } | TrialEnd::Unsupported { reason } => reason,
                other => format!("no machine: {other:?}"),
            })
        };
        sweep::engine::run(plan, &make, tell);
    }

    fn machine(&self, plan: &TrialPlan) -> Result<Machine, TrialEnd> {
        let infra = |reason| TrialEnd::Infra { reason };
        let path = self
            .kernels
            .get(&plan.kernel)
            .ok_or_else(|| infra(format!("the KVM host was not given kernel {}", plan.kernel)))?;
        let unreadable = |e| infra(format!("cannot read {}: {e}", path.display()));
        let elf = fs::read(path).map_err(unreadable)?;
        let initrd = match (&plan.guest.perf_tool, &self.perf_tool) {
            (None, _) => Cow::Borrowed(self.initrd.as_slice()),
            (Some(_), Some(tool)) => Cow::Owned(perf_tool::behind(&self.initrd, tool)),
            (Some(_), None) => {
                return Err(infra("the KVM host was not given perf".to_owned()));
            }
        };
        let config = MachineConfig {
            vcpus: plan.vcpus,
            memory_mib: plan.memory_mib,
            kernel: Kernel::Elf(elf.into()),
            initrd: &initrd,
            cmdline: &format!("{LINUX_CMDLINE} {CMDLINE} {}", plan.cmdline),
            doorbell_ports: MAILBOX_PORT..=MARK_PORT + 3,
            pmu: match &plan.pmu {
                PmuPlan::None => Pmu::None,
                PmuPlan::Synthetic { rdpmc } => Pmu::Synthetic { rdpmc },
                PmuPlan::Host => Pmu::Host,
            },
        };
        Machine::build(&self.kvm, &config).map_err(|error| match error {
            // This KVM host has not what the scenario needs; another may.
            BuildError::Pmu(
                error @ (PmuError::Vendor { .. }
                | PmuError::NoHostPmu
                | PmuError::Capability { .. }),
            ) => TrialEnd::Unsupported {
                reason: error.to_string(),
            },
            error => infra(format!("cannot build the machine: {error}")),
        })
    }
}

/// The native host as an executor: trials run in this process.
#[derive(Debug)]
pub struct InProcess {
    native: Native,
    description: String,
    interrupt: Interrupt,
}

impl InProcess {
    /// `why` it was chosen, in one line.
    #[must_use]
    pub fn new(native: Native, why: &str, interrupt: &Interrupt) -> Self {
        Self {
            native,
            description: format!("native ({why})"),
            interrupt: interrupt.clone(),
        }
    }
}

impl Executor for InProcess {
    fn host(&self) -> String {
        self.description.clone()
    }

    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        Ok(self.native.run(plan, &mut |p| {
            progress.step(&told(&plan.scenario, p));
            !self.interrupt.is_set()
        }))
    }

    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        let interrupt = self.interrupt.clone();
        self.native
            .sweep(plan, &mut |message| take(message) && !interrupt.is_set());
        Ok(())
    }
}
