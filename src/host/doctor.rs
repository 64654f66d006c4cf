//! `unwindlab doctor`: what would be used on this machine, why, what is missing, and which command
//! gets it. Nothing is fetched.

use std::fmt::Display;

use unwindlab_guest_kernel as kernels;
use unwindlab_guest_kernel::confine::{self, Policy};
use unwindlab_guest_kernel::{Cache, KernelSpec, SavedMachines};

use super::choice::{HostChoice, KvmHost, choose};

/// The command that downloads what an emulated KVM host needs.
const RUN: &str = "unwindlab run";
/// The command that downloads what the emulated KVM host with an Intel CPU needs.
const RUN_INTEL: &str = "unwindlab run --kvm-host emulated-intel";
/// The command that downloads the stock kernel.
const FETCH: &str = "unwindlab kernel fetch stock";

/// The report, a line for each part.
#[must_use]
pub fn report(cache: &Cache) -> String {
    let mut lines = Vec::new();
    let emulated = match choose(KvmHost::Auto) {
        Ok(HostChoice::Native { why, .. }) => {
            lines.push(line("KVM host", &format!("native, because {why}")));
            false
        }
        Ok(HostChoice::Emulated { why } | HostChoice::EmulatedIntel { why }) => {
            lines.push(line(
                "KVM host",
                "emulated, because there is no usable native one:",
            ));
            lines.push(line("", &why));
            true
        }
        Err(error) => {
            lines.push(line("KVM host", &unusable(&error)));
            false
        }
    };
    if emulated {
        let qemu = kernels::qemu::find(cache);
        let qemu = part(qemu, RUN, |it| {
            let own = match it.is_confined {
                true => "its own -sandbox",
                false => "NO -sandbox of its own",
            };
            format!("{} ({}), {own}; {}", it.version, it.origin, confined())
        });
        let outer = kernels::outer::find(cache);
        let outer = part(outer, RUN, |it| format!("{} ({})", it.release, it.origin));
        lines.extend([line("QEMU", &qemu), line("outer kernel", &outer)]);
    }
    let bochs = kernels::bochs::find(cache);
    let bochs = part(bochs, RUN_INTEL, |it| {
        format!("{} ({}); {}", it.version, it.origin, confined())
    });
    let bochs = format!("{bochs}; only used for --kvm-host emulated-intel");
    lines.push(line("Bochs", &bochs));
    let stock = kernels::path(&KernelSpec::stock(), cache);
    let stock = part(stock, FETCH, |it| format!("{} ({})", it.release, it.origin));
    lines.push(line("kernel", &stock));
    lines.push(line("builds", &confined()));
    lines.push(line("VMM", &vmm(emulated)));
    lines.push(line("cache", &cache_and_room(cache)));
    lines.concat()
}

/// Where the cache is, and whether an outer machine can be saved there.
fn cache_and_room(cache: &Cache) -> String {
    let root = cache.root().display();
    match SavedMachines::new(cache.clone()).has_room() {
        Ok(()) => root.to_string(),
        Err(error) => format!("{root}; no outer machine is saved: {error}"),
    }
}

/// How what touches the guests' memory is confined.
fn vmm(emulated: bool) -> String {
    match emulated {
        true => "runs inside of QEMU".to_owned(),
        false => format!("a process of its own, {}", confined()),
    }
}

/// How QEMU, and a tree's Makefiles, are confined.
fn confined() -> String {
    let means = confine::means();
    if confine::policy() == Policy::Off {
        return "NOT confined: --no-sandbox".to_owned();
    }
    let namespaces = match &means.namespaces {
        Ok(()) => "own namespaces, no capabilities".to_owned(),
        Err(why) => format!("no namespaces of their own ({why})"),
    };
    match means.lacking() {
        None => {
            format!("confined by Landlock and seccomp: no network, no files of yours; {namespaces}")
        }
        Some(lacking) => format!("NOT fully confined: {lacking}; {namespaces}"),
    }
}

fn line(what: &str, state: &str) -> String {
    format!("{what:<13} {state}\n")
}

/// What is there, or how to get it.
fn part<T, E: Display>(
    found: Result<Option<T>, E>,
    command: &str,
    describe: impl FnOnce(&T) -> String,
) -> String {
    match found {
        Ok(Some(part)) => describe(&part),
        Ok(None) => format!("missing: `{command}` downloads it"),
        Err(error) => unusable(&error),
    }
}

fn unusable(error: &dyn Display) -> String {
    format!("unusable: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_names_its_command() {
        let state = |found: Result<Option<&str>, &str>| part(found, RUN, |it| (*it).to_owned());
        assert_eq!(state(Ok(Some("10.0.13"))), "10.0.13");
        assert_eq!(state(Ok(None)), "missing: `unwindlab run` downloads it");
        assert_eq!(state(Err("too old")), "unusable: too old");
        assert_eq!(line("QEMU", "x"), "QEMU          x\n");
    }
}
