//! The native KVM host: this process on this kernel's /dev/kvm. Also what runs inside the
//! emulated one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};
use unwindlab_vmm::{
    BuildError, Kernel, Kvm, LINUX_CMDLINE, Machine, MachineConfig, Pmu, PmuError,
};

use super::{perf_tool, told};

use crate::bench::carry::Bench;
use crate::bench::qemu::Peer;
use crate::driver::agent;
use crate::interrupt::Interrupt;
use crate::plan::MachineSpec;
use crate::plan::PmuPlan;
use crate::plan::measurement::{Figures, Order};
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan, TrialProgress};
use crate::runner::boot::{Booted, MachineKind};
use crate::sweep::engine::{self, Purpose};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

/// What every guest kernel is told besides [`LINUX_CMDLINE`]. `mitigations=off` keeps entries
/// short and user and kernel in one page table; `oops=panic` makes an oops an end rather than a
/// guess; the rest keeps out what would only disturb (watchdogs, DAMON) or take time (probing).
pub const CMDLINE: &str = "nokaslr mitigations=off oops=panic reboot=t no_timer_check nowatchdog \
    nmi_watchdog=0 audit=0 selinux=0 apparmor=0 random.trust_cpu=on rcupdate.rcu_expedited=1 \
    8250.nr_uarts=1 damon_stat.enabled=0";

/// Runs trials on this kernel's KVM.
#[derive(Debug)]
pub struct Native {
    parts: Parts,
    /// Machines for more trials, that used last at the end.
    booted: Vec<(MachineKind, Booted)>,
}

/// What machines are made of.
#[derive(Debug)]
struct Parts {
    kvm: Kvm,
    kernels: HashMap<String, PathBuf>,
    initrd: Vec<u8>,
    /// The archive of the distribution's perf.
    perf_tool: Option<Vec<u8>>,
    /// What measurements are compared with.
    peer: Option<Peer>,
}

/// MiB that the machines which are kept may take: six of the usual size, all kinds of the library.
const KEPT_MIB: u32 = 3072;

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
            parts: Parts {
                kvm,
                kernels,
                initrd: agent::guest_initrd()?,
                perf_tool,
                peer: None,
            },
            booted: Vec::new(),
        })
    }

    /// With the QEMU in this folder to compare with.
    #[must_use]
    pub fn with_peer(mut self, dir: &Path) -> Self {
        self.parts.peer = Some(Peer {
            dir: dir.to_path_buf(),
        });
        self
    }

    /// Makes one measurement; `go_on` is asked while something is waited for.
    ///
    /// # Errors
    /// Why it could not be made, in one line.
    pub fn bench(&mut self, order: &Order, go_on: &dyn Fn() -> bool) -> Result<Figures, String> {
        // Nothing else takes memory meanwhile.
        self.booted.clear();
        match order {
            Order::Start { vmm, machine } => self
                .parts
                .benched(machine, go_on, |bench| bench.start(*vmm)),
            Order::Restore {
                vmm,
                machine,
                times,
                run_ms,
            } => self.parts.benched(machine, go_on, |bench| {
                bench.restore(*vmm, *times, Duration::from_millis(*run_ms))
            }),
            Order::Trial(plan) => {
                let begin = Instant::now();
                let recording = self.run(plan, &mut |_| go_on());
                self.booted.clear();
                let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
                match recording.end {
                    TrialEnd::Completed => Ok(Figures::Tried { micros }),
                    end => Err(format!("the trial ended with {end:?}")),
                }
            }
        }
    }

    /// Runs one trial. All that can go wrong is an end of the recording.
    pub fn run(
        &mut self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Recording {
        let kind = MachineKind::of(plan);
        let known = self.booted.iter().position(|(known, _)| *known == kind);
        let booted = match known.map(|index| self.booted.remove(index)) {
            Some((_, booted)) => booted,
            None => {
                self.make_room(&kind);
                match self.boot(plan, tell) {
                    Ok(booted) => booted,
                    Err(recording) => return *recording,
                }
            }
        };
        let (recording, again) = booted.run(plan, tell);
        self.booted.extend(again.map(|booted| (kind, booted)));
        recording
    }

    fn boot(
        &self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<Booted, Box<Recording>> {
        let machine = self.parts.machine(plan).map_err(|end| {
            Box::new(Recording {
                end,
                ..Recording::default()
            })
        })?;
        Booted::boot(plan, machine, tell)
    }

    /// Drops machines, those first that have not been used for the longest time.
    fn make_room(&mut self, kind: &MachineKind) {
        let weight = |booted: &[(MachineKind, Booted)]| -> u32 {
            booted.iter().map(|(kind, _)| kind.weight_mib()).sum()
        };
        while !self.booted.is_empty() && weight(&self.booted) + kind.weight_mib() > KEPT_MIB {
            self.booted.remove(0);
        }
    }

    /// Carries out a sweep.
    pub fn sweep(&mut self, plan: &SweepPlan, tell: &mut dyn FnMut(Message) -> bool) {
        // It makes machines of its own.
        self.booted.clear();
        let parts = &self.parts;
        let make = |purpose| {
            let machine = match purpose {
                Purpose::Boot => parts.machine(&plan.trial),
                Purpose::Twin => parts.twin(&plan.trial),
            };
            machine.map_err(|end| match end {
                TrialEnd::Infra { reason } | TrialEnd::Unsupported { reason } => reason,
                other => format!("no machine: {other:?}"),
            })
        };
        engine::run(plan, &make, tell);
    }
}

impl Parts {
    fn machine(&self, plan: &TrialPlan) -> Result<Machine, TrialEnd> {
        let infra = |reason| TrialEnd::Infra { reason };
        let path = self.kernel(&plan.kernel).map_err(infra)?;
        let unreadable = |e| infra(format!("cannot read {}: {e}", path.display()));
        let image = File::open(path).map_err(unreadable)?;
        let initrd = match (&plan.guest.perf_tool, &self.perf_tool) {
            (None, _) => Cow::Borrowed(self.initrd.as_slice()),
            (Some(_), Some(tool)) => Cow::Owned(perf_tool::behind(&self.initrd, tool)),
            (Some(_), None) => {
                return Err(infra("the KVM host was not given perf".to_owned()));
            }
        };
        let rdpmc = match &plan.pmu {
            PmuPlan::Synthetic { rdpmc } => rdpmc.as_slice(),
            PmuPlan::None | PmuPlan::Host => &[],
        };
        self.build(plan, Kernel::File(&image), &initrd, rdpmc)
    }

    /// The image of a kernel by its content hash.
    fn kernel(&self, hash: &str) -> Result<&Path, String> {
        let path = self.kernels.get(hash).map(PathBuf::as_path);
        path.ok_or_else(|| format!("the KVM host was not given kernel {hash}"))
    }

    /// Measures with machines of these parts.
    fn benched(
        &self,
        machine: &MachineSpec,
        go_on: &dyn Fn() -> bool,
        measure: impl FnOnce(&Bench<'_>) -> Result<Figures, String>,
    ) -> Result<Figures, String> {
        measure(&Bench {
            machine,
            kernel: self.kernel(&machine.kernel)?,
            cmdline: &cmdline(&machine.cmdline),
            peer: self.peer.as_ref(),
            go_on,
        })
    }

    /// A machine of the same making without anything in it, to take the state of another.
    fn twin(&self, plan: &TrialPlan) -> Result<Machine, TrialEnd> {
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
    ) -> Result<Machine, TrialEnd> {
        let infra = |reason| TrialEnd::Infra { reason };
        let config = MachineConfig {
            vcpus: plan.vcpus,
            memory_mib: plan.memory_mib,
            kernel,
            initrd,
            cmdline: &cmdline(&plan.cmdline),
            doorbell_ports: MAILBOX_PORT..=MARK_PORT + 3,
            pmu: match &plan.pmu {
                PmuPlan::None => Pmu::None,
                PmuPlan::Synthetic { .. } => Pmu::Synthetic { rdpmc },
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

/// The whole command line of a guest's kernel; with words that a scenario adds.
fn cmdline(words: &str) -> String {
    format!("{LINUX_CMDLINE} {CMDLINE} {words}")
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

    fn bench(&mut self, order: &Order) -> Result<Result<Figures, String>, InfraError> {
        let interrupt = self.interrupt.clone();
        Ok(self.native.bench(order, &|| !interrupt.is_set()))
    }
}
