//! MSRs and `RDPMC` that the VMM answers. The checks are in `vmm/src/checks/counters.rs`; `pmu.rs` and `pmu_architectural.rs` have the rest of the counters.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    msrs_of_amds_counters_and_rdpmc_are_answered_by_the_vmm
    msrs_of_intels_counters_and_rdpmc_are_answered_by_the_vmm
}
