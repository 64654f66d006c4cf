//! The options that name a kernel.

use super::args::{BuildOptions, KernelOptions};
use crate::campaign::kernel::KernelChoice;

impl KernelOptions {
    /// Whether one of them is there.
    pub(super) fn is_given(&self) -> bool {
        let BuildOptions {
            tree,
            rev,
            source,
            patch,
            config,
        } = &self.build;
        let build = tree.is_some() || rev.is_some() || source.is_some();
        self.kernel.is_some() || build || !patch.is_empty() || !config.is_empty()
    }

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
