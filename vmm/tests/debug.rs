//! Breakpoints, single steps and NMIs, exact to the instruction. The checks are in `vmm/src/checks/debug.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    every_nmi_is_taken_exactly_once
    an_nmi_is_taken_at_the_instruction_it_was_injected_at
    an_nmi_in_the_handler_waits_for_its_return
    a_step_holds_an_nmi_back
    a_breakpoint_is_met_once_each_turn
    a_step_is_one_instruction_also_at_breakpoints
    many_steps_stop_early_only_for_a_reason
    paused_steps_go_on_where_they_were
    a_step_leaves_no_trap_flag_on_the_stack
    stepping_over_an_output_is_one_stop
    the_guests_own_debug_exceptions_are_its_own
    a_running_vcpu_steps_after_a_pause
    a_breakpoint_on_data_stops_behind_the_access
}
