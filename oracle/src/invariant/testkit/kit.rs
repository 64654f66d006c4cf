//! Builds small traces by hand.
//!
//! The session has four events on every CPU, all writing to that CPU's ring: `track` (receives
//! record 22), `nmi` (defers), `enter` and `leave` (the system call markers). Every record is 10 ns
//! after the one before, and lies in the ring of the CPU that it is said to be of.

use unwindlab_abi::message::{EventAnnounce, ExpectedStack, Program, RingAnnounce, ThreadAnnounce};
use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};
use unwindlab_abi::user_mode::Asked;

use super::entry_text::USER_NMI_FRAMES;
use crate::trace::model::{
    CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED, CallchainDeferred, Sample,
};
use crate::trace::recording::{Injection, ThreadProgress};
use crate::trace::witness::Written;
use crate::trace::{
    Event, EventKind, NonceRequest, NonceResult, Trace, UserModeTrace, UserReturn, Witness,
};

/// TID, TIME, CPU, CALLCHAIN, IDENTIFIER.
pub const SAMPLE_TYPE: u64 = (1 << 1) | (1 << 2) | (1 << 5) | (1 << 7) | (1 << 16);
/// Bytes of sample_id with [`SAMPLE_TYPE`].
pub const SAMPLE_ID: usize = 32;
/// What an NMI's chain starts with: the handler, then the call in the entry code.
pub const NMI_FRAMES: [u64; 2] = [0xffff_ffff_8200_0010, 0xffff_ffff_8200_0020];
/// A kernel address to find in chains where no injection gives one.
pub const SOMEWHERE: u64 = 0xffff_ffff_8100_0400;

/// Where an injection hits.
#[derive(Debug, Clone, Copy)]
pub struct Hit {
    rip: u64,
    pub cpl: u8,
    armed: Option<(u32, u64)>,
    interrupt_waits: bool,
    stack_pointer: u64,
}

/// An injection into kernel mode.
pub const fn kernel(rip: u64) -> Hit {
    Hit {
        rip,
        cpl: 0,
        armed: None,
        interrupt_waits: false,
        stack_pointer: 0,
    }
}

/// An injection into user mode.
pub const fn user(rip: u64) -> Hit {
    Hit {
        rip,
        cpl: 3,
        armed: None,
        interrupt_waits: false,
        stack_pointer: 0,
    }
}

impl Hit {
    /// Armed by this thread in this iteration.
    pub const fn iteration(mut self, thread: u32, iteration: u64) -> Self {
        self.armed = Some((thread, iteration));
        self
    }

    /// With this stack pointer.
    pub const fn with_stack(mut self, stack_pointer: u64) -> Self {
        self.stack_pointer = stack_pointer;
        self
    }

    /// An interrupt is pending there.
    pub const fn interrupt_waits(mut self) -> Self {
        self.interrupt_waits = true;
        self
    }
}

/// A trace in the making.
#[derive(Debug, Clone)]
pub struct Kit {
    trace: Trace,
    positions: Vec<usize>,
    /// `data_head` of every ring.
    heads: Vec<u64>,
    time: u64,
}

impl Kit {
    /// A machine with `cpus` CPUs and the session described above.
    pub fn new(cpus: u32) -> Self {
        let specs = vec![
            EventSpec {
                defer_output: true,
                task: true,
                context_switch: true,
                ..spec("track", EventSource::Dummy)
            },
            EventSpec {
                defer_callchain: true,
                ..spec("nmi", tracepoint("nmi", "nmi_handler"))
            },
            spec("enter", tracepoint("raw_syscalls", "sys_enter")),
            spec("leave", tracepoint("raw_syscalls", "sys_exit")),
        ];
        let mut trace = Trace {
            release: "7.2.0-test".into(),
            vcpus: cpus,
            ..Trace::default()
        };
        for cpu in 0..cpus {
            trace.rings.push(RingAnnounce {
                ring: cpu,
                cpu,
                control_page: 0,
                data_pages: Vec::new(),
                backward: false,
            });
            for spec in 0..4 {
                trace.session.push(announce(spec, cpu));
            }
        }
        trace.tracing = Some(Tracing {
            ring_pages: 64,
            events: specs,
        });
        Self {
            trace,
            positions: vec![0; cpus as usize],
            heads: vec![0; cpus as usize],
            time: 1000,
        }
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// The time of the next record.
    pub fn tick(&mut self) -> u64 {
        self.time += 10;
        self.time
    }

    /// Returns to user mode are noted from now on, all of them.
    pub fn witness(&mut self) {
        self.trace.witness = Some(Witness {
            begin: Written {
                heads: self.heads.clone(),
                log: 0,
            },
            complete: true,
            ..Witness::default()
        });
    }

    /// The task returns to user mode.
    pub fn returns(&mut self, cpu: u32, tid: u32) {
        self.returns_at(cpu, tid, 0);
    }

    /// The same, with so many slots in the lab client's log.
    pub fn returns_at(&mut self, vcpu: u32, tid: u32, log: u64) {
        self.noted(vcpu, tid, log, 0);
    }

    /// The task returns to this user instruction.
    pub fn returns_to(&mut self, vcpu: u32, tid: u32, rip: u64) {
        self.noted(vcpu, tid, 0, rip);
    }

    fn noted(&mut self, vcpu: u32, tid: u32, log: u64, rip: u64) {
        let heads = self.heads.clone();
        if let Some(witness) = &mut self.trace.witness {
            witness.returns.push(UserReturn {
                vcpu,
                tid,
                heads,
                log,
                rip,
            });
        }
    }

    /// Changes the spec of that name.
    pub fn spec(&mut self, name: &str, change: impl FnOnce(&mut EventSpec)) {
        let events = &mut self.trace.tracing.as_mut().unwrap().events;
        change(events.iter_mut().find(|s| s.name == name).unwrap());
    }

    /// Opens another event of this spec on every CPU; all records of it must say so.
    pub fn open(&mut self, spec: EventSpec) -> u32 {
        let events = &mut self.trace.tracing.as_mut().unwrap().events;
        let at = u32::try_from(events.len()).unwrap();
        events.push(spec);
        for cpu in 0..self.trace.vcpus {
            self.trace.session.push(announce(at, cpu));
        }
        at
    }

    /// Takes the event of that name away from a CPU, without renumbering the others.
    pub fn close(&mut self, cpu: u32, name: &str) {
        let events = &self.trace.tracing.as_ref().unwrap().events;
        let at = events.iter().position(|s| s.name == name).unwrap();
        for open in &mut self.trace.session {
            if open.cpu == cpu && open.spec as usize == at {
                open.spec = u32::MAX;
            }
        }
    }

    /// Announces a workload thread: leaf at 0x1000..0x1100 with its system call returning to
    /// 0x1080, then two callers, then the root.
    pub fn thread(&mut self, thread: u32, tid: u32) {
        self.deep_thread(thread, tid, 2);
    }

    /// The same with `n` calls of the recursing caller.
    pub fn deep_thread(&mut self, thread: u32, tid: u32, n: u32) {
        self.trace.threads.push(ThreadAnnounce {
            thread,
            pid: pid_of(tid),
            tid,
            stack: ExpectedStack {
                leaf_start: 0x1000,
                leaf_end: 0x1100,
                syscall_return: 0x1080,
                callers: vec![(0x2000, n), (0x3000, 1)],
            },
        });
    }

    /// Announces code whose stack is known at each instruction.
    pub fn program(&mut self, program: Program) {
        self.trace.program = program;
    }

    /// Progress of a thread: at the first injection, at the last one, at the end.
    pub fn progress(&mut self, thread: u32, first: u64, last: u64, end: u64) {
        self.trace.progress.push(ThreadProgress {
            thread,
            at_first_injection: first,
            at_last_injection: last,
            at_end: end,
        });
    }

    /// Unwinding in user mode was set up, with this handler.
    pub fn user_mode(&mut self, handler: u64) {
        self.trace.user_mode = Some(UserModeTrace {
            handler,
            ..UserModeTrace::default()
        });
    }

    /// The nonce of the last sample, and what the BPF program did.
    pub fn nonce(&mut self, tid: u32, nonce: u64, asked: Asked) {
        let kernel = self.trace.events.last().unwrap().kernel_chain().to_vec();
        let user_mode = self.trace.user_mode.as_mut().unwrap();
        user_mode.requests.push(NonceRequest {
            nonce,
            pid: pid_of(tid),
            tid,
            asked,
            answer: 0,
            cpu: 0,
            kernel,
        });
    }

    /// A result of a handler.
    pub fn result(&mut self, tid: u32, nonce: u64, frames: &[u64]) {
        let user_mode = self.trace.user_mode.as_mut().unwrap();
        user_mode.results.push(NonceResult {
            nonce,
            tid,
            ip: frames.first().copied().unwrap_or(0),
            sp: 0,
            frames: frames.to_vec(),
            stop: 0,
            code: -1,
            more: 0,
        });
    }

    /// A line of the log.
    pub fn log(&mut self, line: &str) {
        self.trace.log.push(line.into());
    }

    /// Says that a ring made no sense.
    pub fn corrupt(&mut self, why: &str) {
        self.trace.corrupt.push(why.into());
    }

    /// S(cookie) by an NMI that is in no injection log.
    pub fn nmi(&mut self, cpu: u32, tid: u32, cookie: u64) -> usize {
        let mut chain = kernel_part(SOMEWHERE, 0);
        chain.extend([CONTEXT_USER_DEFERRED, cookie]);
        self.sample(cpu, tid, 1, chain)
    }

    /// An injection and the S(cookie) that it raises.
    pub fn inject(&mut self, cpu: u32, tid: u32, cookie: u64, hit: Hit) -> usize {
        self.log_injection(cpu, hit);
        let mut chain = kernel_part(hit.rip, hit.cpl);
        chain.extend([CONTEXT_USER_DEFERRED, cookie]);
        self.sample(cpu, tid, 1, chain)
    }

    /// An injection and the sample with an inline user chain that it raises.
    pub fn inject_inline(&mut self, cpu: u32, tid: u32, hit: Hit, frames: &[u64]) {
        self.log_injection(cpu, hit);
        let mut chain = kernel_part(hit.rip, hit.cpl);
        chain.push(CONTEXT_USER);
        chain.extend(frames);
        self.sample(cpu, tid, 1, chain);
    }

    /// An injection and the sample without a user part that it raises.
    pub fn inject_kernel_only(&mut self, cpu: u32, tid: u32, hit: Hit) {
        self.log_injection(cpu, hit);
        self.sample(cpu, tid, 1, kernel_part(hit.rip, hit.cpl));
    }

    /// An injection that leaves no sample.
    pub fn inject_unseen(&mut self, cpu: u32, hit: Hit) {
        self.log_injection(cpu, hit);
    }

    /// An NMI that is logged, and the S(cookie) that it raises, with what lies outside of the
    /// interrupted function: the frames of [`outer`](super::entry_text::outer). An NMI in user mode
    /// has none.
    pub fn inject_in(&mut self, cpu: u32, tid: u32, cookie: u64, hit: Hit, outer: &[u64]) -> usize {
        self.log_injection(cpu, hit);
        self.nmi_in(cpu, tid, cookie, hit, outer)
    }

    /// The same by an NMI that is in no injection log.
    pub fn nmi_in(&mut self, cpu: u32, tid: u32, cookie: u64, hit: Hit, outer: &[u64]) -> usize {
        let mut chain = vec![CONTEXT_KERNEL];
        match hit.cpl {
            0 => {
                chain.extend(NMI_FRAMES);
                chain.push(hit.rip);
            }
            _ => chain.extend(USER_NMI_FRAMES),
        }
        chain.extend(outer);
        chain.extend([CONTEXT_USER_DEFERRED, cookie]);
        self.sample(cpu, tid, 1, chain)
    }

    /// S(cookie) of the event of this spec, made by the task itself in a function that these frames
    /// called. Without frames the registers are those of user mode.
    pub fn asks_in(&mut self, spec: u32, cpu: u32, tid: u32, cookie: u64, outer: &[u64]) -> usize {
        let mut chain = Vec::new();
        if !outer.is_empty() {
            chain.extend([CONTEXT_KERNEL, SOMEWHERE]);
            chain.extend(outer);
        }
        chain.extend([CONTEXT_USER_DEFERRED, cookie]);
        self.sample(cpu, tid, spec, chain)
    }

    fn log_injection(&mut self, cpu: u32, hit: Hit) {
        self.trace.injections.push(Injection {
            spec: 0,
            vcpu: cpu,
            rip: hit.rip,
            cpl: hit.cpl,
            thread: hit.armed.map(|(thread, _)| thread),
            iteration: hit.armed.map(|(_, iteration)| iteration),
            exact: hit.armed.is_some() && hit.cpl == 0,
            interrupt_waits: hit.interrupt_waits,
            stack_pointer: hit.stack_pointer,
        });
    }

    /// An NMI sample with the user chain in it.
    pub fn inline(&mut self, cpu: u32, tid: u32, frames: &[u64]) -> usize {
        let mut chain = kernel_part(SOMEWHERE, 0);
        chain.push(CONTEXT_USER);
        chain.extend(frames);
        self.sample(cpu, tid, 1, chain)
    }

    /// An NMI sample without any user part.
    pub fn kernel_only(&mut self, cpu: u32, tid: u32) -> usize {
        self.sample(cpu, tid, 1, kernel_part(SOMEWHERE, 0))
    }

    /// A sample of the spec with this number and this chain.
    pub fn sample(&mut self, cpu: u32, tid: u32, spec: u32, chain: Vec<u64>) -> usize {
        let sample = Sample {
            chain: Some(chain),
            ..Sample::default()
        };
        self.push(cpu, tid, spec, EventKind::Sample(sample))
    }

    /// D(cookie) to `track`.
    pub fn deferred(&mut self, cpu: u32, tid: u32, cookie: u64, frames: &[u64]) -> usize {
        self.deferred_to(0, cpu, tid, cookie, frames)
    }

    /// D(cookie) to the event of this spec.
    pub fn deferred_to(
        &mut self,
        spec: u32,
        cpu: u32,
        tid: u32,
        cookie: u64,
        frames: &[u64],
    ) -> usize {
        let chain = CallchainDeferred {
            cookie,
            nr: frames.len() as u64,
            ips: frames.to_vec(),
        };
        let at = self.push(cpu, tid, spec, EventKind::CallchainDeferred(chain));
        let event = &mut self.trace.events[at];
        event.misc = 2;
        event.size = u16::try_from(24 + 8 * frames.len() + SAMPLE_ID).unwrap();
        self.heads[cpu as usize] += u64::from(event.size);
        at
    }

    /// `sys_enter` of a task, for `getppid`.
    pub fn sys_enter(&mut self, cpu: u32, tid: u32) -> usize {
        self.sys_enter_of(cpu, tid, 110)
    }

    /// `sys_enter` of a task, for the system call with this number.
    pub fn sys_enter_of(&mut self, cpu: u32, tid: u32, number: u64) -> usize {
        let raw = [0, number].into_iter().flat_map(u64::to_le_bytes);
        let sample = Sample {
            raw: Some(raw.collect()),
            ..Sample::default()
        };
        self.push(cpu, tid, 2, EventKind::Sample(sample))
    }

    /// `sys_exit` of a task.
    pub fn sys_exit(&mut self, cpu: u32, tid: u32) -> usize {
        self.push(cpu, tid, 3, EventKind::Sample(Sample::default()))
    }

    /// The task leaves the CPU.
    pub fn switch_out(&mut self, cpu: u32, tid: u32) -> usize {
        self.switch(cpu, tid, true, None)
    }

    /// The task comes to the CPU.
    pub fn switch_in(&mut self, cpu: u32, tid: u32) -> usize {
        self.switch(cpu, tid, false, None)
    }

    fn switch(&mut self, cpu: u32, tid: u32, out: bool, other: Option<(u32, u32)>) -> usize {
        let kind = EventKind::Switch {
            out,
            preempt: false,
            other,
        };
        self.push(cpu, tid, 0, kind)
    }

    /// The CPU lost records.
    pub fn lost(&mut self, cpu: u32, lost: u64) -> usize {
        self.push(cpu, 0, 0, EventKind::Lost { id: 1, lost })
    }

    /// A task is forked.
    pub fn fork(&mut self, cpu: u32, parent: u32, child: u32) -> usize {
        let kind = EventKind::Fork {
            pid: pid_of(child),
            ppid: pid_of(parent),
            tid: child,
            ptid: parent,
        };
        self.push(cpu, parent, 0, kind)
    }

    /// A task writes its exit record.
    pub fn exit(&mut self, cpu: u32, tid: u32) -> usize {
        let kind = EventKind::Exit {
            pid: pid_of(tid),
            ppid: 1,
            tid,
            ptid: 1,
        };
        self.push(cpu, tid, 0, kind)
    }

    /// A task calls exec.
    pub fn exec(&mut self, cpu: u32, tid: u32) -> usize {
        let kind = EventKind::Comm {
            comm: "new".into(),
            exec: true,
        };
        self.push(cpu, tid, 0, kind)
    }

    /// Takes the last record back.
    pub fn drop_last(&mut self) {
        if let Some(event) = self.trace.events.pop() {
            self.positions[event.cpu as usize] -= 1;
        }
    }

    /// A record of the event with this spec number, with everything else as usual.
    pub fn push(&mut self, cpu: u32, tid: u32, spec: u32, kind: EventKind) -> usize {
        let index = self.trace.events.len();
        let session = &self.trace.session;
        let event = session.iter().position(|o| o.cpu == cpu && o.spec == spec);
        let position = self.positions[cpu as usize];
        let size = 8;
        self.positions[cpu as usize] += 1;
        let time = self.tick();
        self.trace.events.push(Event {
            index,
            ring: cpu,
            cpu,
            ring_index: cpu as usize,
            position,
            start: self.heads[cpu as usize],
            time: Some(time),
            event,
            pid: Some(pid_of(tid)),
            tid: Some(tid),
            misc: 0,
            size,
            kind,
        });
        self.heads[cpu as usize] += u64::from(size);
        index
    }
}

/// Threads of one thousand are of one process.
fn pid_of(tid: u32) -> u32 {
    if tid == u32::MAX || tid < 1000 {
        return tid;
    }
    tid / 1000 * 1000
}

/// A spec with nothing asked for.
pub fn spec(name: &str, source: EventSource) -> EventSpec {
    EventSpec {
        sample_period: 1,
        sample_type: SAMPLE_TYPE,
        ..EventSpec::blank(name, source)
    }
}

/// A tracepoint.
pub fn tracepoint(system: &str, name: &str) -> EventSource {
    EventSource::Tracepoint {
        system: system.into(),
        name: name.into(),
    }
}

fn announce(spec: u32, cpu: u32) -> EventAnnounce {
    EventAnnounce {
        spec,
        cpu,
        id: u64::from(spec * 100 + cpu) + 1,
        ring: cpu,
    }
}

fn kernel_part(rip: u64, cpl: u8) -> Vec<u64> {
    let mut chain = vec![CONTEXT_KERNEL];
    chain.extend(NMI_FRAMES);
    if cpl == 0 {
        chain.extend([rip, SOMEWHERE + 0x40]);
    }
    chain
}
