//! NMIs that come one after the other, at one instruction, and at a breakpoint. The checks are in `vmm/src/checks/nmis.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    a_second_nmi_is_taken_right_behind_the_iret
    several_nmis_are_taken_at_one_instruction
    a_breakpoint_that_was_passed_is_passed_behind_an_nmi_too
    a_breakpoint_that_was_not_met_is_met_behind_an_nmi
}
