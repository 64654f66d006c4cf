//! What waits in a vCPU, over a checkpoint. The checks are in `vmm/src/checks/events.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    a_checkpoint_holds_an_nmi_that_waits
    a_checkpoint_holds_that_nmis_are_masked
    a_checkpoint_holds_the_shadow_of_sti
}
