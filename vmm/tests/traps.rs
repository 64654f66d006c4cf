//! More breakpoints than a CPU has: planted traps. The checks are in `vmm/src/checks/traps.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    code_that_the_guest_changed_is_told_of_and_left_alone
    a_checkpoint_has_no_traps
    each_of_eight_places_is_met_once_a_turn
    on_the_callers_thread_they_are_met_too
    an_nmi_is_taken_at_the_trap_and_the_arrival_told_once
    a_step_from_a_trap_is_one_instruction
    an_instruction_that_faults_comes_back_to_its_trap
    a_trap_keeps_the_shadow_of_the_instruction_before
    places_that_take_no_trap_are_limited
    the_guests_own_breakpoints_stay_in_effect
}
