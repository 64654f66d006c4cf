//! Accesses of the guest at which a vCPU is to stop. The checks are in `vmm/src/checks/accesses.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    a_vcpu_stops_behind_what_is_watched_for_and_nowhere_else
}
