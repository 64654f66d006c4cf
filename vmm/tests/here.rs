//! Running a vCPU on the thread of the caller. The checks are in `vmm/src/checks/here.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    it_stops_where_it_would_on_its_own_thread
    it_is_stopped_when_the_time_is_over
    another_thread_may_run_it
    one_that_runs_is_refused_and_others_go_on
    it_steps_and_meets_breakpoints_as_on_its_own_thread
}
