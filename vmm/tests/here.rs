//! Running a vCPU on the thread of the caller. The checks are in `vmm/src/checks/here.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    it_stops_where_it_would_on_its_own_thread
    it_runs_while_it_is_waited_for
    another_thread_may_run_it
    two_vcpus_keep_their_threads
    it_steps_and_meets_breakpoints_as_on_its_own_thread
    paused_before_it_ran_it_goes_on_as_it_was_to
}
