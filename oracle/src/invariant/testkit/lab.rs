//! Builds small logs by hand. Every record has the next slot; tasks are named by a number from 1,
//! and have tid 1000 and that number.

use unwindlab_abi::lab::LabContext;

use super::{Kit, check};
use crate::invariant::{Check, Violation};
use crate::trace::Trace;
use crate::trace::lab::{LabClient, LabEvent, LabFlags, LabKind, LabTrace};

/// A cookie of CPU 0.
pub const C: u64 = 3 << 32 | 1;
/// The next one.
pub const NEXT: u64 = 5 << 32 | 1;
/// The stack of a thread of [`Kit::thread`], the leaf in user mode.
pub const STACK: [u64; 4] = [0x1010, 0x2000, 0x2000, 0x3000];

/// A log in the making. The task's entries are counted as the client counts them.
#[derive(Debug, Clone)]
pub struct LabKit {
    /// What perf has.
    pub perf: Kit,
    log: LabTrace,
    entries: Vec<u32>,
    cpu: u16,
    flags: LabFlags,
    context: LabContext,
    interrupted: u64,
}

/// The first registration of a client.
pub fn client(number: u16) -> LabClient {
    LabClient {
        number,
        generation: 1,
    }
}

impl LabKit {
    /// A machine of two CPUs with clients 0 and 1 registered.
    pub fn new() -> Self {
        let mut kit = Self::empty();
        kit.registered(client(0), 0);
        kit.registered(client(1), 0);
        kit
    }

    /// No clients.
    pub fn empty() -> Self {
        Self {
            perf: Kit::new(2),
            log: LabTrace::default(),
            entries: vec![0; 8],
            cpu: 0,
            flags: LabFlags::default(),
            context: LabContext::Task,
            interrupted: 0,
        }
    }

    /// Two clients, two entries of task 1 and one of task 2, all answered.
    pub fn good() -> Self {
        let mut kit = Self::new();
        kit.perf.thread(0, 1001);
        kit.target(1);
        for cookie in [C, NEXT] {
            kit.ask(1, client(0), 0, cookie);
            kit.ask(1, client(0), 1, cookie);
            kit.ask(1, client(1), 0, cookie);
            kit.call(1, client(1), cookie, &STACK);
            kit.call(1, client(0), cookie, &STACK);
            kit.leave_from(1, STACK[0], false);
        }
        kit.on(1).ask(2, client(0), 0, 3 << 32 | 2);
        kit.call(2, client(0), 3 << 32 | 2, &STACK);
        kit.leave(2);
        kit
    }

    /// A client that asks, is cancelled, and one in its place, registered then, that is called.
    pub fn taken_place(number: u16, cookie: u64) -> Self {
        let next = LabClient {
            number,
            generation: 2,
        };
        let mut kit = Self::new();
        kit.ask(1, client(0), 0, C);
        kit.cancel(client(0));
        kit.registered(next, 0);
        kit.call(1, next, cookie, &STACK);
        kit
    }

    /// A request of client 0 that begins at this slot, and is over before (0) the end of its cancellation, behind
    /// that (1), or behind the registration of `next` (2), which is called for a cookie.
    pub fn asking_meanwhile(over: usize, next: LabClient, begin: u64, cookie: u64) -> Self {
        let mut kit = Self::new();
        kit.mark(client(0), LabKind::Cancel);
        for step in 0..3 {
            if step == over {
                let begin = begin.min(kit.slots());
                kit.ask_since(1, client(0), 0, C, begin);
            }
            match step {
                0 => kit.mark(client(0), LabKind::Cancelled),
                1 => kit.registered(next, 0),
                _ => 0,
            };
        }
        kit.call(1, next, cookie, &STACK);
        kit
    }

    /// A client that nobody asked for is called for this task, and has been cancelled so far.
    pub fn unasked(task: u32, cancellation: &[LabKind]) -> Self {
        let mut kit = Self::new();
        kit.ask(1, client(0), 0, C);
        for step in cancellation {
            kit.mark(client(1), step.clone());
        }
        kit.call(task, client(1), C, &STACK);
        kit
    }

    /// What follows is on this CPU.
    pub fn on(&mut self, cpu: u16) -> &mut Self {
        self.cpu = cpu;
        self
    }

    /// The next record is of an NMI.
    pub fn nmi(&mut self) -> &mut Self {
        self.context = LabContext::Nmi;
        self
    }

    /// The next record is of an NMI that hits this instruction.
    pub fn nmi_at(&mut self, ip: u64) -> &mut Self {
        self.interrupted = ip;
        self.nmi()
    }

    /// Slots so far.
    pub fn slots(&self) -> u64 {
        self.log.events.len() as u64
    }

    /// The next record has these flags.
    pub fn with(&mut self, set: fn(&mut LabFlags)) -> &mut Self {
        set(&mut self.flags);
        self
    }

    /// A request; gives its slot.
    pub fn ask(&mut self, task: u32, by: LabClient, ret: i32, cookie: u64) -> u64 {
        let begin = self.log.events.len() as u64;
        self.ask_since(task, by, ret, cookie, begin)
    }

    /// A request that began when there were so many records.
    pub fn ask_since(
        &mut self,
        task: u32,
        by: LabClient,
        ret: i32,
        cookie: u64,
        begin: u64,
    ) -> u64 {
        let kind = LabKind::Request {
            ret,
            cookie,
            begin,
            ip: std::mem::take(&mut self.interrupted),
        };
        self.push(task, Some(by), kind)
    }

    /// A callback that begins; gives its slot.
    pub fn begin(&mut self, task: u32, of: LabClient, cookie: u64, frames: &[u64]) -> u64 {
        let stack = self.log.stacks.iter().position(|known| known == frames);
        let stack = stack.unwrap_or_else(|| {
            self.log.stacks.push(frames.to_vec());
            self.log.stacks.len() - 1
        });
        let kind = LabKind::Callback {
            cookie,
            nr: frames.len() as u64,
            stack: Some(stack),
        };
        self.push(task, Some(of), kind)
    }

    /// It ends.
    pub fn end(&mut self, task: u32, of: LabClient, callback: u64) -> u64 {
        self.push(task, Some(of), LabKind::Called { callback })
    }

    /// A whole callback; gives the slot of its begin.
    pub fn call(&mut self, task: u32, of: LabClient, cookie: u64, frames: &[u64]) -> u64 {
        let slot = self.begin(task, of, cookie, frames);
        self.end(task, of, slot);
        slot
    }

    /// The task returns to user mode.
    pub fn leave(&mut self, task: u32) -> u64 {
        self.leave_from(task, 0x40, false)
    }

    /// The task returns to user mode, and the client has found nothing to log that for.
    pub fn leave_unlogged(&mut self, task: u32) {
        self.entries[task as usize] += 1;
    }

    /// The task returns to this instruction, from an interrupt or not.
    pub fn leave_from(&mut self, task: u32, ip: u64, interrupt: bool) -> u64 {
        let kind = LabKind::Return {
            entered: 0,
            ip,
            interrupt,
        };
        let slot = self.push(task, None, kind);
        self.entries[task as usize] += 1;
        slot
    }

    /// The task exits.
    pub fn exit(&mut self, task: u32) -> u64 {
        self.push(task, None, LabKind::Exit)
    }

    /// The task is watched.
    pub fn target(&mut self, task: u32) {
        let kind = LabKind::Target {
            tgid: 1000,
            parent: 0,
        };
        self.push(task, None, kind);
    }

    /// What a registration gave.
    pub fn registered(&mut self, client: LabClient, ret: i32) -> u64 {
        self.push(0, Some(client), LabKind::Registered { ret })
    }

    /// A client is cancelled; gives the slots of begin and end.
    pub fn cancel(&mut self, client: LabClient) -> [u64; 2] {
        [LabKind::Cancel, LabKind::Cancelled].map(|kind| self.push(0, Some(client), kind))
    }

    /// The begin or the end alone.
    pub fn mark(&mut self, client: LabClient, kind: LabKind) -> u64 {
        self.push(0, Some(client), kind)
    }

    /// The client is switched off.
    pub fn stop(&mut self) {
        self.push(0, None, LabKind::Stop);
    }

    fn push(&mut self, task: u32, client: Option<LabClient>, kind: LabKind) -> u64 {
        let slot = self.log.events.len() as u64;
        self.log.events.push(LabEvent {
            slot,
            time: self.perf.tick(),
            cpu: self.cpu,
            tid: if task == 0 { 0 } else { 1000 + task },
            task,
            entry: self.entries[task as usize],
            context: std::mem::replace(&mut self.context, LabContext::Task),
            flags: std::mem::take(&mut self.flags),
            client,
            kind,
        });
        slot
    }

    /// The trace.
    pub fn trace(&self) -> Trace {
        let mut trace = self.perf.trace();
        trace.lab = Some(self.log.clone());
        trace
    }
}

/// The evidence, for a log on which the invariant must hold.
#[track_caller]
pub fn holds(id: &str, kit: &LabKit) -> (usize, Vec<String>) {
    match check(id, &kit.trace()) {
        Check::Holds {
            evidence, excused, ..
        } => (evidence, excused),
        other => panic!("does not hold: {other:?}"),
    }
}

/// The slots of the one violation.
#[track_caller]
pub fn violated(id: &str, kit: &LabKit) -> Vec<u64> {
    match check(id, &kit.trace()) {
        Check::Violated(list) => {
            let [Violation { log, .. }] = list.as_slice() else {
                panic!("{list:?}");
            };
            log.clone()
        }
        other => panic!("not violated: {other:?}"),
    }
}

/// A log that must not exercise the invariant.
#[track_caller]
pub fn not_exercised(id: &str, kit: &LabKit) {
    let check = check(id, &kit.trace());
    assert!(matches!(check, Check::NotExercised { .. }), "{check:?}");
}

/// How many things are undecided, for a log in which nothing is evidence.
#[track_caller]
pub fn undecided(id: &str, kit: &LabKit) -> usize {
    match check(id, &kit.trace()) {
        Check::NotExercised { undecided, .. } => undecided,
        other => panic!("was exercised: {other:?}"),
    }
}
