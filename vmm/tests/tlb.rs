//! Translations behind a restore. The checks are in `vmm/src/checks/tlb.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    a_restore_forgets_translations
    a_restore_forgets_global_translations
}
