//! Checkpoints: the machine is what it was, as often as one likes, also in nests. The checks are in `vmm/src/checks/checkpoint.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    a_machine_is_what_it_was_as_often_as_one_likes
    what_the_vmm_wrote_is_taken_back_too
    checkpoints_can_be_nested
    checkpoints_along_a_run_can_be_restored_in_any_order
    the_console_and_another_machines_checkpoint_are_left_alone
    a_twin_goes_on_where_the_first_machine_was
    a_machine_that_has_run_is_no_twin
    the_tscs_of_two_vcpus_stay_as_far_apart_as_they_are
}
