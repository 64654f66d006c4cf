//! The self-test: the VMM's own checks, made on the KVM at hand.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use unwindlab_vmm::checks::{self, Check, Effort, Lab, Verdict};

use crate::plan::self_test::{AboutKvm, CheckVerdict, Checked, SelfTestMessage};

/// Parameters that decide what KVM has the CPU do, and what it does itself (arch/x86/kvm, 6.12).
const PARAMETERS: &[(&str, &[&str])] = &[
    ("kvm", &["enable_pmu", "nx_huge_pages", "tdp_mmu"]),
    (
        "kvm_amd",
        &["avic", "lbrv", "nested", "npt", "vgif", "vls", "vnmi"],
    ),
    (
        "kvm_intel",
        &[
            "enable_apicv",
            "ept",
            "flexpriority",
            "nested",
            "pml",
            "preemption_timer",
            "unrestricted_guest",
            "vnmi",
            "vpid",
        ],
    ),
];

/// Makes all checks, each of which may take `limit`. `tell` returns whether to go on.
pub(super) fn run(limit: Duration, tell: &mut dyn FnMut(SelfTestMessage) -> bool) {
    if !tell(SelfTestMessage::About(AboutKvm::here())) {
        return;
    }
    let lab = match Lab::open(Effort::Quick) {
        Ok(lab) => lab,
        Err(error) => {
            tell(SelfTestMessage::Failed(error.to_string()));
            return;
        }
    };
    for check in checks::all() {
        let begun = SelfTestMessage::Begun(check.name.to_owned());
        if !tell(begun) || !tell(SelfTestMessage::Checked(checked(check, &lab, limit))) {
            return;
        }
    }
    tell(SelfTestMessage::Done);
}

fn checked(check: &Check, lab: &Lab, limit: Duration) -> Checked {
    let begin = Instant::now();
    let verdict = match check.run(lab, limit) {
        Verdict::Ok => CheckVerdict::Ok,
        Verdict::Failed(failure) => CheckVerdict::Failed(failure.to_string()),
        Verdict::NotAvailable(why) => CheckVerdict::NotAvailable(why),
    };
    Checked {
        name: check.name.to_owned(),
        verdict,
        millis: u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

impl AboutKvm {
    /// Of the machine that this runs on. What cannot be read is said to be unknown.
    #[must_use]
    pub fn here() -> Self {
        let system = rustix::system::uname();
        let text = |it: &std::ffi::CStr| it.to_string_lossy().into_owned();
        Self {
            cpu: cpu(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            kernel: format!("{} {}", text(system.release()), text(system.version())),
            modules: modules(Path::new("/sys/module")),
        }
    }
}

/// The CPU by /proc/cpuinfo.
fn cpu(told: &str) -> String {
    let value = |name: &str| {
        let mut lines = told.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| key.trim() == name);
        found.map_or("unknown", |(_, value)| value.trim())
    };
    let count = told
        .lines()
        .filter(|it| it.starts_with("processor"))
        .count();
    let flags = value("flags");
    let virtualisation = ["vmx", "svm"].into_iter().find(|flag| {
        let mut all = flags.split_whitespace();
        all.any(|it| it == *flag)
    });
    format!(
        "{}, {}, family {} model {} stepping {}, microcode {}, {}, {count} CPUs",
        value("vendor_id"),
        value("model name"),
        value("cpu family"),
        value("model"),
        value("stepping"),
        value("microcode"),
        virtualisation.unwrap_or("neither vmx nor svm"),
    )
}

/// KVM's modules that are there, with those of their parameters that matter; of an unknown module, with all.
fn modules(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|it| it == "kvm" || it.starts_with("kvm_"))
        .collect();
    names.sort();
    let described = names.into_iter().map(|name| {
        let parameters = parameters(&folder.join(&name).join("parameters"), &name);
        format!("{name}{parameters}")
    });
    described.collect()
}

fn parameters(folder: &Path, module: &str) -> String {
    let wanted = PARAMETERS.iter().find(|(name, _)| *name == module);
    let Ok(entries) = fs::read_dir(folder) else {
        return String::new();
    };
    let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|it| wanted.is_none_or(|(_, wanted)| wanted.contains(&it.as_str())))
        .collect();
    names.sort();
    let value = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let told = names.iter().filter_map(|name| {
        let value = value(name)?;
        Some(format!(" {name}={}", value.trim()))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_a_line() {
        let told = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
            model name\t: Xeon\nstepping\t: 4\nflags\t\t: fpu vmx\n\nprocessor\t: 1\n";
        assert_eq!(
            cpu(told),
            "GenuineIntel, Xeon, family 6 model 85 stepping 4, microcode unknown, vmx, 2 CPUs"
        );
        assert!(cpu("").contains("neither vmx nor svm, 0 CPUs"));
    }

    #[test]
    fn modules_are_told_with_what_matters() {
        let folder = tempfile::tempdir().unwrap();
        for (module, parameter) in [
            ("kvm_intel", "pml"),
            ("kvm_intel", "ple_gap"),
            ("ext4", "x"),
            ("kvm_x", "y"),
        ] {
            let parameters = folder.path().join(module).join("parameters");
            fs::create_dir_all(&parameters).unwrap();
            fs::write(parameters.join(parameter), "Y\n").unwrap();
        }
        assert_eq!(modules(folder.path()), ["kvm_intel pml=Y", "kvm_x y=Y"]);
        assert!(modules(&folder.path().join("none")).is_empty());
    }
}
