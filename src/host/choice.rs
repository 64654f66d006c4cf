//! Which KVM host is used: what the user asks for, and what the probe says.

use unwindlab_vmm::probe::{ProbeReport, probe};
use unwindlab_vmm::{BuildError, Kvm, OpenKvmError};

/// Where KVM comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvmHost {
    /// `native` where a probe guest shows that it runs kernels, else `emulated`.
    #[default]
    Auto,
    /// This machine's /dev/kvm.
    Native,
    /// A Linux with KVM in QEMU's TCG.
    Emulated,
    /// A Linux with KVM on an Intel CPU in Bochs. Only where it is asked for.
    EmulatedIntel,
}

impl KvmHost {
    /// Every choice.
    pub const ALL: [Self; 4] = [
        Self::Auto,
        Self::Native,
        Self::Emulated,
        Self::EmulatedIntel,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Emulated => "emulated",
            Self::EmulatedIntel => "emulated-intel",
        }
    }
}

/// The KVM host that is used, and why, in one line.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variant's line says what its fields are")]
pub enum HostChoice {
    /// This kernel's /dev/kvm, opened.
    Native { kvm: Kvm, why: String },
    /// A Linux with KVM in QEMU.
    Emulated { why: String },
    /// A Linux with KVM on an Intel CPU in Bochs.
    EmulatedIntel { why: String },
}

/// Why this machine's /dev/kvm cannot run guests.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenKvmError),
    /// The machine for the probe cannot be built on it.
    #[error("cannot build the probe's machine: {0}")]
    Build(#[from] BuildError),
    /// The probe guest does not run on it as it should.
    #[error("{0}")]
    Probe(ProbeReport),
}

/// Chooses. `auto` asks the probe, never a version or a vendor.
///
/// # Errors
/// [`NativeError`] where the user asks for the native host and there is none.
pub fn choose(asked: KvmHost) -> Result<HostChoice, NativeError> {
    let why = || "asked for by --kvm-host".to_owned();
    match asked {
        KvmHost::Emulated => return Ok(HostChoice::Emulated { why: why() }),
        KvmHost::EmulatedIntel => return Ok(HostChoice::EmulatedIntel { why: why() }),
        KvmHost::Auto | KvmHost::Native => {}
    }
    match (open_native(), asked) {
        (Ok(kvm), _) => Ok(HostChoice::Native {
            kvm,
            why: "the probe guest ran on /dev/kvm".to_owned(),
        }),
        (Err(error), KvmHost::Native) => Err(error),
        (Err(error), _) => Ok(HostChoice::Emulated {
            why: error.to_string(),
        }),
    }
}

/// Chooses what is checked: this machine's /dev/kvm, whether or not it can run kernels, unless another one is asked for.
///
/// # Errors
/// [`OpenKvmError`] where there is none.
pub fn choose_to_check(asked: KvmHost) -> Result<HostChoice, OpenKvmError> {
    let why = || "asked for by --kvm-host".to_owned();
    Ok(match asked {
        KvmHost::Emulated => HostChoice::Emulated { why: why() },
        KvmHost::EmulatedIntel => HostChoice::EmulatedIntel { why: why() },
        KvmHost::Auto | KvmHost::Native => HostChoice::Native {
            kvm: unwindlab_vmm::open_kvm()?,
            why: "this machine's /dev/kvm, which is checked".to_owned(),
        },
    })
}

/// Opens /dev/kvm if it can run a kernel.
fn open_native() -> Result<Kvm, NativeError> {
    let kvm = unwindlab_vmm::open_kvm()?;
    let report = probe(&kvm)?;
    match report.is_usable() {
        true => Ok(kvm),
        false => Err(NativeError::Probe(report)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_host_is_the_one_that_is_asked_for() {
        let chosen = choose(KvmHost::EmulatedIntel);
        assert!(matches!(chosen, Ok(HostChoice::EmulatedIntel { .. })));
        let chosen = choose(KvmHost::Emulated);
        assert!(matches!(chosen, Ok(HostChoice::Emulated { .. })));
    }

    #[test]
    fn the_one_in_bochs_is_never_chosen_unasked() {
        let chosen = choose(KvmHost::Auto);
        assert!(!matches!(chosen, Ok(HostChoice::EmulatedIntel { .. })));
    }
}
