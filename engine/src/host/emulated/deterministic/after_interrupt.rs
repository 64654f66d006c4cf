//! Works around a fault of QEMU's SVM that instruction-counted time brings out.
//!
//! `VMRUN` with an injected interrupt (`helper_vmrun`, `SVM_EVTINJ_TYPE_INTR`, in
//! target/i386/tcg/system/svm_helper.c; QEMU 10.0 and later sources) delivers it, but leaves its
//! vector in `exception_index`. The next exit from the guest clears that. If QEMU leaves its CPU
//! loop before (with `-icount`, whenever a timer of the outer machine is due), the vector is
//! delivered a second time, whether the guest has interrupts enabled or not: its timer tick
//! interrupts itself and waits for a lock that it holds.
//!
//! So each injected interrupt is followed by an exit before the guest's next instruction. The exit
//! comes from an interrupt of the outer machine's own that is pending when `VMRUN` is executed.
//! perf raises it: an event on a probe of the function that enters the guest, where interrupts are
//! off, defers its owner's wake-up to an interrupt of the CPU to itself (`irq_work`). KVM does the
//! same when it wants an exit at once.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use perf_event_open::config::{Cpu, Opts, Proc, SampleOn};
use perf_event_open::count::Counter;
use perf_event_open::event::tp::Tracepoint;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::mount::{MountFlags, mount};
use rustix::thread::{CpuSet, sched_getaffinity};

/// Where tracefs is mounted.
const TRACEFS: &str = "/tracing";
/// Reads KVM's own note that the next entry carries an interrupt.
const PROBE: &str = "p:unwindlab/entry svm_vcpu_run injected=vcpu->arch.interrupt.injected";
/// `O_ASYNC` of asm-generic/fcntl.h, which rustix leaves out.
const ASYNC: OFlags = OFlags::from_bits_retain(0o20000);

/// While this lives, an exit from the guest follows each interrupt that KVM injects on the CPUs that
/// the calling thread may use.
pub struct ExitAfterInterrupt {
    _counters: Vec<Counter>,
}

impl fmt::Debug for ExitAfterInterrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitAfterInterrupt").finish_non_exhaustive()
    }
}

impl ExitAfterInterrupt {
    /// Begins.
    ///
    /// # Errors
    /// When this kernel's `kvm_amd` has no such function, or perf refuses the event.
    pub fn begin() -> anyhow::Result<Self> {
        let tracefs = Path::new(TRACEFS);
        let id = tracefs.join("events/unwindlab/entry/id");
        // An earlier order may have set the probe.
        if !id.exists() {
            fs::create_dir_all(TRACEFS)?;
            mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None)?;
            OpenOptions::new()
                .append(true)
                .open(tracefs.join("kprobe_events"))
                .and_then(|mut probes| probes.write_all(PROBE.as_bytes()))
                .context("the outer kernel accepts no probe of svm_vcpu_run")?;
        }
        let event = Tracepoint {
            id: fs::read_to_string(id)?.trim().parse()?,
        };
        let cpus = sched_getaffinity(None)?;
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu));
        let counters = cpus.map(|cpu| Self::counter(&event, u32::try_from(cpu)?));
        Ok(Self {
            _counters: counters.collect::<anyhow::Result<_>>()?,
        })
    }

    fn counter(event: &Tracepoint, cpu: u32) -> anyhow::Result<Counter> {
        let every = Opts {
            sample_on: SampleOn::Count(1),
            ..Opts::default()
        };
        let counter = Counter::new(event.clone(), (Proc::ALL, Cpu(cpu)), every)
            .context("no perf event on svm_vcpu_run")?;
        counter.with_ftrace_filter(c"injected == 1")?;
        // With this flag perf sends a wake-up at each event, which needs no recipient.
        fcntl_setfl(counter.file(), ASYNC)?;
        counter.enable()?;
        Ok(counter)
    }
}
