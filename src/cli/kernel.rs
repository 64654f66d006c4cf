//! The options that name a kernel.

use super::args::{BuildOptions, KernelOptions};
use crate::campaign::kernel::KernelChoice;

impl KernelOptions {
    /// The kernel that they name.
    pub(super) fn choice(&self) -> KernelChoice {
        KernelChoice {
            kernel: self.kernel.clone(),
            ..self.build.choice()
        }
    }
}

impl BuildOptions {
    /// The kernel that is to be built.
    pub(super) fn choice(&self) -> KernelChoice {
        KernelChoice {
            kernel: None,
            tree: self.tree.clone(),
            rev: self.rev.clone(),
            source: self.source.clone(),
            patch: self.patch.clone(),
            config: self.config.clone(),
        }
    }
}
