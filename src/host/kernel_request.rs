//! Which kernel a campaign wants.

use std::fmt;

use unwindlab_guest_kernel::BuildSpec;

/// A kernel that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelRequest {
    /// A kernel that exists, as `--kernel` names it.
    Ready(String),
    /// A kernel to be built.
    Build(BuildSpec),
}

impl fmt::Display for KernelRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(spec) => f.write_str(spec),
            Self::Build(spec) => spec.fmt(f),
        }
    }
}
