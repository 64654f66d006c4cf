//! Which KVM host is used: what the user asks for, and what the probe says.

use clap::ValueEnum;
use unwindlab_vmm::Kvm;
use unwindlab_vmm::probe::probe;

/// Where KVM comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum KvmHost {
    /// `native` where a probe guest shows that it runs kernels, else `emulated`.
    #[default]
    Auto,
    /// This machine's /dev/kvm.
    Native,
    /// A Linux with KVM in QEMU's TCG.
    Emulated,
}

/// The choice, with the reason in one line.
#[derive(Debug)]
pub enum Choice {
    /// This kernel's /dev/kvm.
    Native {
        /// It, opened.
        kvm: Kvm,
        /// Why.
        why: String,
    },
    /// A Linux with KVM in QEMU.
    Emulated {
        /// Why.
        why: String,
    },
    /// The user asked for what this machine does not have.
    Impossible {
        /// Why, and what to do.
        why: String,
    },
}

/// Chooses. `auto` asks the probe, never a version or a vendor.
#[must_use]
pub fn choose(asked: KvmHost) -> Choice {
    if asked == KvmHost::Emulated {
        return Choice::Emulated {
            why: "asked for by --kvm-host".to_owned(),
        };
    }
    match (native(), asked) {
        (Ok(kvm), _) => Choice::Native {
            kvm,
            why: "the probe guest ran on /dev/kvm".to_owned(),
        },
        (Err(why), KvmHost::Native) => Choice::Impossible {
            why: format!("no native KVM host: {why}; --kvm-host emulated needs none"),
        },
        (Err(why), _) => Choice::Emulated { why },
    }
}

/// Opens /dev/kvm if it can run a kernel.
///
/// # Errors
/// Why it cannot, in one line.
pub fn native() -> Result<Kvm, String> {
    let kvm = unwindlab_vmm::open_kvm().map_err(|e| e.to_string())?;
    let report = probe(&kvm).map_err(|e| format!("the probe guest cannot be made: {e}"))?;
    if report.is_usable() {
        Ok(kvm)
    } else {
        Err(report.to_string())
    }
}
