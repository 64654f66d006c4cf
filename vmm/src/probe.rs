//! Whether a KVM runs kernel code as a kernel needs it.
