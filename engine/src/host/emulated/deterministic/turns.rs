//! Which vCPU gets the outer machine's one CPU, and for how long, as a seed has it.
//!
//! All vCPUs may run at any time; the favoured one gets by far the most. A busy host does the same
//! to its guests, so every interleaving that results is one that can occur there.

use std::fs;
use std::io;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, setpriority_process};

/// Length of a turn in microseconds: at most about the time slice of the outer kernel's scheduler.
const TURN_US: std::ops::Range<u64> = 200..3_000;
/// Pause between two turns in microseconds, in which no vCPU runs: it makes seeds differ with one
/// vCPU too.
const PAUSE_US: std::ops::Range<u64> = 0..50;
/// Nice values: the favoured vCPU gets 69 of 70 parts of the CPU.
const FAVOURED: i32 = 0;
const OTHERS: i32 = 19;

/// Makes the machine that this process is about to build run its vCPUs in turns.
///
/// # Errors
/// When no thread can be started.
pub fn take_turns(seed: u64, vcpus: u8) -> io::Result<()> {
    Builder::new()
        .name("turns".to_owned())
        .spawn(move || {
            if let Err(error) = turns(seed, usize::from(vcpus)) {
                // The threads ended with their machine; else the console shows this.
                eprintln!("unwindlab: no more turns: {error}");
            }
        })
        .map(drop)
}

fn turns(seed: u64, vcpus: usize) -> io::Result<()> {
    let mut random = Rng::with_seed(seed);
    let threads = loop {
        let threads = vcpu_threads()?;
        if threads.len() == vcpus {
            break threads;
        }
        thread::sleep(Duration::from_millis(1));
    };
    loop {
        let favoured = random.usize(..threads.len());
        for (index, thread) in threads.iter().enumerate() {
            let nice = if index == favoured { FAVOURED } else { OTHERS };
            setpriority_process(Some(*thread), nice)?;
        }
        let pause = Duration::from_micros(random.u64(PAUSE_US));
        let turn = Duration::from_micros(random.u64(TURN_US));
        let start = Instant::now();
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        thread::sleep(turn);
    }
}

/// The threads of this process that run vCPUs, by number; they are named so (`vcpu0`).
fn vcpu_threads() -> io::Result<Vec<Pid>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm"))?;
        let id = entry.file_name().to_string_lossy().parse().ok();
        if let (Some(number), Some(id)) = (name.strip_prefix("vcpu"), id.and_then(Pid::from_raw)) {
            threads.push((number.trim().to_owned(), id));
        }
    }
    threads.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(threads.into_iter().map(|(_, id)| id).collect())
}
