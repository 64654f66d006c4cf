//! Guests with 8 vCPUs that scribble over rings, shared pages and mailboxes while the host reads them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_abi::message::AgentMessage as Say;

use crate::guest::honest::{finished, hello, set_up};
use crate::guest::{LOW, Script};
use crate::{host, outcome, peak_kib, plan};

const VCPUS: u8 = 8;
/// The memory that the host may take: the guest's RAM, its checkpoint, rings and results.
const MOST_KIB: u64 = 1 << 20;
/// Longer than any trial with these limits may take.
const LONGEST: Duration = Duration::from_secs(5);

/// Scripts: who scribbles from when on, and how many bytes of a message are flipped at most.
fn scripts() -> Vec<(&'static str, Script)> {
    let from_below = |script: Script, flips| {
        let said = set_up(VCPUS.into());
        said.iter()
            .fold(script, |it, message| it.say_from_below(message, flips))
    };
    let greeted = || Script::new().say(&hello(VCPUS.into()));
    let prepared = || set_up(VCPUS.into()).iter().fold(greeted(), Script::say);
    let end = |script: Script| {
        let ended = script.marks(1, 3).scribble(LOW, 1 << 16, 500).marks(2, 3);
        ended
            .scribble(LOW, 1 << 16, 500)
            .say(&finished())
            .say(&Say::Bye)
    };
    vec![
        (
            "flips bits of each message",
            end(from_below(greeted(), 1).say(&Say::Ready)),
        ),
        (
            "flips many",
            end(from_below(greeted(), 15).say(&Say::Ready)),
        ),
        ("scribbles over its rings", end(prepared().say(&Say::Ready))),
        (
            "8 vCPUs scribble over rings and shared pages",
            end(prepared().say(&Say::Ready).start_others(false)),
        ),
        (
            "8 vCPUs scribble over mailboxes, too",
            end(from_below(greeted().start_others(false), 0).say(&Say::Ready)),
        ),
        (
            "8 vCPUs scribble and talk",
            end(prepared().say(&Say::Ready).start_others(true)),
        ),
        (
            "scribbles over its page tables",
            end(prepared()
                .say(&Say::Ready)
                .scribble(0x9000, 1 << 15, 1)
                .say(&Say::Task)),
        ),
    ]
}

/// `UNWINDLAB_SCRIBBLED` trials of each script; a few where it is not set.
#[test]
fn scribbled_trials_end_as_the_guests_fault() {
    let trials = std::env::var("UNWINDLAB_SCRIBBLED").ok();
    let trials: u32 = trials.map_or(20, |it| it.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let begin = Instant::now();
    for (what, script) in scripts() {
        script.store(&program);
        let mut host = host(&program);
        let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
        let mut longest = Duration::ZERO;
        for _ in 0..trials {
            let begin = Instant::now();
            let recording = host.run(&plan(VCPUS), &mut |_| true);
            longest = longest.max(begin.elapsed());
            let (found, reason) = outcome(&recording);
            assert!(
                !["infra-error", "skip"].contains(&found),
                "{what}: {reason}"
            );
            *outcomes.entry(found).or_default() += 1;
        }
        println!(
            "{what}: {outcomes:?}, longest {longest:.1?}, peak RSS {} MiB",
            peak_kib() / 1024
        );
        assert!(longest < LONGEST, "{what}: {longest:?}");
        assert!(peak_kib() < MOST_KIB, "{what}: {} KiB", peak_kib());
    }
    println!("{:.0?} in all", begin.elapsed());
}
