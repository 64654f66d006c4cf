//! Instructions that hold interrupts, or debug exceptions, back. The checks are in `vmm/src/checks/shadows.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    steps_go_on_behind_mov_ss
    a_breakpoint_behind_the_shadow_of_mov_ss_is_met
    steps_past_popf_and_sti_are_one_instruction_each
    an_nmi_in_the_shadow_of_sti_is_taken_where_the_state_says
}
