//! One attack after the other.

use std::time::Instant;

use unwindlab_abi::Observation;
use unwindlab_abi::mailbox::{Header, MAGIC};
use unwindlab_abi::message::AgentMessage as Say;
use unwindlab_abi::tracefs::TracefsBuffer;
use unwindlab_abi::user_stack::UserStack;

use crate::guest::honest::{event, finished, hello, ring, set_up, shared, thread};
use crate::guest::{LOW, Script};
use crate::{host, outcome, peak_kib, plan};

/// A guest that has said Hello.
fn greeted() -> Script {
    Script::new().say(&hello(1))
}

/// A guest that has announced everything.
fn prepared() -> Script {
    set_up(1).iter().fold(greeted(), Script::say)
}

/// A guest that is ready.
fn ready() -> Script {
    prepared().say(&Say::Ready)
}

/// A guest whose workload has ended.
fn behind() -> Script {
    ready().say(&finished())
}

/// A guest that announces this in place of what the plan asks for at that place of the set-up.
fn instead(place: usize, message: &Say) -> Script {
    let mut all = set_up(1);
    all[place] = message.clone();
    all.iter().fold(greeted(), Script::say).say(&Say::Ready)
}

/// A guest whose only word is a mailbox with this length and these pages.
fn mailbox(len: usize, pages: Vec<u64>) -> Script {
    let header = Header { len, pages };
    Script::new().say_raw(&header.to_bytes(), &[0xff; 64])
}

/// What it does, the outcome, and a part of the reason.
type Attack = (&'static str, Script, &'static str, &'static str);

/// No RAM is there.
const NOWHERE: u64 = 0xd000_0000;

fn before_hello() -> Vec<Attack> {
    let many = [MAGIC.to_le_bytes(), [0; 4], u32::MAX.to_le_bytes(), [0; 4]].concat();
    vec![
        (
            "says nothing and spins",
            Script::new().spin(),
            "boot-error",
            "no agent",
        ),
        (
            "says nothing and halts",
            Script::new(),
            "boot-error",
            "no agent",
        ),
        (
            "prints 100,000 characters and spins",
            Script::new().print(b'x', 100_000).spin(),
            "boot-error",
            "no agent",
        ),
        (
            "triple-faults in its boot",
            Script::new().triple_fault(),
            "guest-panic",
            "triple fault",
        ),
        (
            "resets itself in its boot",
            Script::new().reset(),
            "guest-panic",
            "triple fault or reset",
        ),
        (
            "jumps into MMIO in its boot",
            Script::new().jump(NOWHERE),
            "guest-panic",
            "no code",
        ),
        (
            "rings with a frame that is not RAM",
            Script::new().ring(0xf_ffff),
            "guest-misbehaved",
            "guest memory",
        ),
        (
            "rings with a page that is no mailbox",
            Script::new().ring(0),
            "guest-misbehaved",
            "not a mailbox",
        ),
        (
            "claims 4 billion pages",
            Script::new().say_raw(&many, &[]),
            "guest-misbehaved",
            "pages",
        ),
        (
            "claims more bytes than it has pages",
            mailbox(9000, vec![0x20_0000]),
            "guest-misbehaved",
            "9000 bytes",
        ),
        (
            "has a mailbox outside of its RAM",
            mailbox(64, vec![NOWHERE]),
            "guest-misbehaved",
            "guest memory",
        ),
        (
            "says what is no message",
            mailbox(64, vec![0x20_1000]),
            "guest-misbehaved",
            "undecodable",
        ),
        (
            "says nothing at all",
            mailbox(0, vec![]),
            "guest-misbehaved",
            "undecodable",
        ),
        (
            "writes several items to the port at once",
            Script::new().string_output(),
            "guest-misbehaved",
            "1 bytes written",
        ),
        (
            "makes a mark before Hello",
            Script::new().marks(1, 1),
            "guest-misbehaved",
            "mark of thread 0",
        ),
        (
            "is of another version",
            Script::new().say(&Say::Hello {
                abi_version: 1,
                release: String::new(),
                cpus: 1,
            }),
            "guest-misbehaved",
            "version 1",
        ),
        (
            "has more CPUs than the machine",
            Script::new().say(&hello(2)),
            "guest-misbehaved",
            "2 CPUs",
        ),
        (
            "says Bye first",
            Script::new().say(&Say::Bye),
            "guest-misbehaved",
            "Bye before Hello",
        ),
        (
            "has failed before Hello",
            Script::new().say(&Say::Failed {
                what: "no".to_owned(),
            }),
            "boot-error",
            "no",
        ),
    ]
}

fn in_the_set_up() -> Vec<Attack> {
    let no_memory = Say::Ring(unwindlab_abi::message::RingAnnounce {
        control_page: NOWHERE,
        ..ring(0)
    });
    let one_page = Say::Ring(unwindlab_abi::message::RingAnnounce {
        data_pages: vec![LOW],
        ..ring(0)
    });
    let mut deep = thread(0);
    deep.stack.callers = vec![(0x40_1000, u32::MAX)];
    let symbol = unwindlab_abi::message::UserSymbol {
        name: "x".to_owned(),
        start: 0,
        end: 1,
    };
    vec![
        (
            "says Hello twice",
            greeted().say(&hello(1)),
            "guest-misbehaved",
            "Hello before it is ready",
        ),
        (
            "says that its kernel lacks something",
            greeted().say(&Say::Unsupported {
                reason: "no perf".to_owned(),
            }),
            "guest-skip",
            "no perf",
        ),
        (
            "has failed before Ready",
            greeted().say(&Say::Failed {
                what: "no".to_owned(),
            }),
            "boot-error",
            "no",
        ),
        (
            "says Finished before Ready",
            greeted().say(&finished()),
            "guest-misbehaved",
            "Finished before it is ready",
        ),
        (
            "says Bye before Ready",
            greeted().say(&Say::Bye),
            "guest-misbehaved",
            "Bye before it is ready",
        ),
        (
            "is ready without anything",
            greeted().say(&Say::Ready),
            "guest-misbehaved",
            "0 threads of 1",
        ),
        (
            "announces a ring of another number",
            instead(0, &Say::Ring(ring(1))),
            "guest-misbehaved",
            "ring 1, expected 0",
        ),
        (
            "announces a ring of another size",
            instead(0, &one_page),
            "guest-misbehaved",
            "1 data pages",
        ),
        (
            "announces a ring outside of its RAM",
            instead(0, &no_memory),
            "guest-misbehaved",
            "guest memory",
        ),
        (
            "announces a ring too many",
            prepared().say(&Say::Ring(unwindlab_abi::message::RingAnnounce {
                ring: 1,
                ..ring(0)
            })),
            "guest-misbehaved",
            "one more than the 1 of CPU 0",
        ),
        (
            "announces no ring, but an event",
            instead(0, &shared()),
            "guest-misbehaved",
            "writes to ring 0",
        ),
        (
            "announces an event that the plan has not",
            instead(
                1,
                &Say::Event(unwindlab_abi::message::EventAnnounce {
                    spec: 7,
                    ..event(0)
                }),
            ),
            "guest-misbehaved",
            "no event 7",
        ),
        (
            "announces an event twice",
            prepared().say(&Say::Event(event(0))),
            "guest-misbehaved",
            "twice",
        ),
        (
            "announces no event",
            instead(1, &Say::Task),
            "guest-misbehaved",
            "without event 0",
        ),
        (
            "shares one page",
            instead(2, &Say::Shared { pages: vec![LOW] }),
            "guest-misbehaved",
            "shares 1 pages",
        ),
        (
            "announces a thread too many",
            prepared().say(&Say::Thread(thread(1))),
            "guest-misbehaved",
            "thread 1",
        ),
        (
            "announces no thread",
            instead(3, &Say::Task),
            "guest-misbehaved",
            "0 threads of 1",
        ),
        (
            "announces a stack of 4 billion frames",
            instead(3, &Say::Thread(deep)),
            "guest-misbehaved",
            "4294967296 frames, the plan asks for 3",
        ),
        (
            "announces 5,000 symbols",
            instead(4, &Say::Symbols(vec![symbol; 5000])),
            "guest-misbehaved",
            "too many symbols",
        ),
        (
            "announces a lab log that nobody asked for",
            greeted().say(&Say::Lab {
                pages: vec![LOW, LOW],
            }),
            "guest-misbehaved",
            "lab log",
        ),
        (
            "announces a buffer of tracefs that nobody asked for",
            greeted().say(&Say::TracefsBuffer(TracefsBuffer {
                instance: 0,
                cpu: 0,
                pages: vec![LOW],
            })),
            "guest-misbehaved",
            "no instance 0",
        ),
        (
            "has 4 billion pages located",
            greeted().say(&Say::Locate {
                start: 0,
                pages: u32::MAX,
            }),
            "guest-misbehaved",
            "too many pages",
        ),
        (
            "has pages located that are not mapped",
            greeted().say(&Say::Locate {
                start: 1 << 40,
                pages: 1,
            }),
            "guest-misbehaved",
            "nothing is mapped",
        ),
        (
            "has so many pages located that the answer does not fit",
            greeted().say(&Say::Locate {
                start: 0,
                pages: 30_000,
            }),
            "guest-misbehaved",
            "does not fit",
        ),
        (
            "has its page tables outside of its RAM",
            greeted().page_tables(NOWHERE).say(&Say::Task),
            "guest-panic",
            "no RAM",
        ),
        (
            "has a GS base that is not mapped",
            greeted().gs_base(0xffff_ffff_8000_0000).say(&Say::Task),
            "guest-misbehaved",
            "does not lead to guest memory",
        ),
        (
            "asks for its task for ever",
            greeted().say_for_ever(&Say::Task),
            "boot-error",
            "no agent",
        ),
        (
            "makes a mark before it is ready",
            greeted().marks(1, 1),
            "guest-misbehaved",
            "mark of thread 0",
        ),
        (
            "triple-faults in the set-up",
            greeted().triple_fault(),
            "guest-panic",
            "triple fault",
        ),
    ]
}

fn from_ready_on() -> Vec<Attack> {
    let head = LOW + 1024;
    let log = Say::KernelLog("x".repeat(20_000));
    let stack = UserStack {
        thread: 0,
        cookie: 0,
        lost: 0,
        by_frame_pointers: Vec::new(),
        by_dwarf: Vec::new(),
        semantic: Vec::new(),
    };
    let stacks = Say::Observed(Observation::UserStacks(vec![stack; 33]));
    vec![
        (
            "lacks something after Ready",
            ready().say(&Say::Unsupported {
                reason: "no perf".to_owned(),
            }),
            "guest-misbehaved",
            "Unsupported while the workload runs",
        ),
        (
            "has failed after Ready",
            ready().say(&Say::Failed {
                what: "no".to_owned(),
            }),
            "guest-misbehaved",
            "the guest's agent: no",
        ),
        (
            "says that perf has failed after Ready",
            ready().say(&Say::PerfToolFailed {
                what: "no".to_owned(),
            }),
            "guest-misbehaved",
            "the guest's agent: no",
        ),
        (
            "announces a ring after Ready",
            ready().say(&Say::Ring(ring(0))),
            "guest-misbehaved",
            "Ring while the workload runs",
        ),
        (
            "is ready twice",
            ready().say(&Say::Ready),
            "guest-misbehaved",
            "Ready while the workload runs",
        ),
        (
            "says Bye without Finished",
            ready().say(&Say::Bye),
            "guest-misbehaved",
            "Bye while the workload runs",
        ),
        (
            "makes a mark of a thread that is not there",
            ready().marks(0x500 | 1, 1),
            "guest-misbehaved",
            "mark of thread 5",
        ),
        ("makes marks for ever", ready().marks(1, 0), "hang", ""),
        ("spins for ever", ready().spin(), "hang", ""),
        (
            "counts while it does nothing",
            ready().scribble(0x5_8000, 4096, 0),
            "timeout",
            "",
        ),
        (
            "has a head that is beyond its ring",
            ready().write(head, 1 << 40).say(&finished()).say(&Say::Bye),
            "fail",
            "ahead of",
        ),
        (
            "has a head that is no record's end",
            ready().write(head, 3).say(&finished()).say(&Say::Bye),
            "fail",
            "no multiple of 8",
        ),
        (
            "has a head, and no record",
            ready().write(head, 64).say(&finished()).say(&Say::Bye),
            "fail",
            "stream position",
        ),
        (
            "jumps into MMIO while the workload runs",
            ready().jump(NOWHERE),
            "guest-panic",
            "no code",
        ),
        (
            "triple-faults while the workload runs",
            ready().triple_fault(),
            "guest-panic",
            "triple fault",
        ),
        (
            "counts iterations of 1,000 threads",
            ready().say(&Say::Finished {
                iterations: vec![0; 1000],
            }),
            "guest-misbehaved",
            "1000 threads of 1",
        ),
        (
            "is finished twice",
            behind().say(&finished()),
            "guest-misbehaved",
            "Finished behind the workload",
        ),
        (
            "lacks something behind its workload",
            behind().say(&Say::Unsupported {
                reason: "no perf".to_owned(),
            }),
            "guest-misbehaved",
            "Unsupported behind",
        ),
        (
            "tells of 33 stacks at once",
            behind().say(&stacks),
            "guest-misbehaved",
            "33 stacks of its own",
        ),
        (
            "sends its log for ever",
            behind().say_for_ever(&log),
            "hang",
            "",
        ),
        ("never says Bye", behind().spin(), "hang", ""),
        (
            "keeps to the protocol, and records nothing",
            behind().say(&Say::Bye),
            "judged",
            "",
        ),
    ]
}

/// Each attack: its outcome, how long it took, and the memory that this process had at most by then.
#[test]
fn each_attack_has_its_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let mut wrong = Vec::new();
    let all = [before_hello(), in_the_set_up(), from_ready_on()].concat();
    println!("| the guest | outcome | reason | ms | peak RSS, MiB |\n|---|---|---|---|---|");
    for (attack, script, expected, part) in all {
        script.store(&program);
        let begin = Instant::now();
        let recording = host(&program).run(&plan(1), &mut |_| true);
        let (found, reason) = outcome(&recording);
        let (ms, mib) = (begin.elapsed().as_millis(), peak_kib() / 1024);
        println!("| {attack} | `{found}` | {reason} | {ms} | {mib} |");
        if found != expected || !reason.contains(part) || ms > 5000 {
            wrong.push(format!(
                "{attack}: {found} ({reason}) in {ms} ms, expected {expected} ({part})"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(peak_kib() < 512 << 10, "{} KiB", peak_kib());
}
