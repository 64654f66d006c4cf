//! Gets a kernel, the outer kernel and QEMU into the cache, and says where they are.
//!
//! `cargo run -p unwindlab-guest-kernel --example artifacts -- stock [SYMBOL...]`
//!
//! `--all` for a symbol prints them all, in the format of /proc/kallsyms.

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use unwindlab_guest_kernel::{Cache, KernelSpec, Progress, Symbols, fetch, outer_kernel, qemu};

struct Lines(Instant);

impl Progress for Lines {
    fn step(&self, what: &str) {
        eprintln!("{:8.3} {what}", self.0.elapsed().as_secs_f64());
    }

    fn bytes(&self, _done: u64, _total: u64) {}
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let progress = Lines(Instant::now());
    let mut words = env::args().skip(1);
    let spec: KernelSpec = words.next().ok_or("which kernel?")?.parse()?;
    let cache = Cache::open(None)?;
    let kernel = fetch(&spec, &cache, &progress)?;
    progress.step(&format!("{kernel:#?}"));
    progress.step(&format!("{:#?}", outer_kernel(&cache, &progress)?));
    progress.step(&format!("{:#?}", qemu(&cache, &progress)?));
    let symbols = Symbols::load(&kernel.symbols)?;
    progress.step(&format!("{} symbols", symbols.len()));
    for name in words {
        if name == "--all" {
            for (address, kind, name) in symbols.iter() {
                println!("{address:016x} {kind} {name}");
            }
            continue;
        }
        match symbols.address(&name) {
            Some(address) => println!(
                "{address:#x} {name} size {:?} per-cpu {:x?} resolves to {:?}",
                symbols.size(&name),
                symbols.percpu_offset(&name),
                symbols.resolve(address),
            ),
            None => println!("no {name}; similar: {:?}", symbols.similar(&name)),
        }
    }
    progress.step("done");
    Ok(())
}
