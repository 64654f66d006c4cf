//! Which kernel a command wants.

use std::fmt;

use unwindlab_guest_kernel::BuildSpec;

/// A kernel that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelRequest {
    /// One that is there, as `--kernel` has it.
    Ready(String),
    /// One to be built.
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
