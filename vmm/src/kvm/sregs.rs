//! System registers that were read, made fit to be set.

use kvm_bindings::kvm_sregs;

use super::cpuid::on_tcg;

/// A task state segment in 64-bit mode that no task uses (AMD APM vol. 2, table 4-6).
const AVAILABLE_TSS: u8 = 9;

/// The system registers to set later. KVM's SVM code always reports a busy TSS (`svm_get_segment`).
/// But QEMU's TCG, which may emulate that SVM, grants `ioperm` only by one that is not busy
/// (`helper_check_io`).
pub(crate) fn settable(mut sregs: kvm_sregs) -> kvm_sregs {
    if on_tcg() {
        sregs.tr.type_ = AVAILABLE_TSS;
    }
    sregs
}
