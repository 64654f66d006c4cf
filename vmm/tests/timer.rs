//! Ticks that are late. The checks are in `vmm/src/checks/timer.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    a_timer_that_is_armed_is_postponed_and_an_interrupt_under_way_is_seen
    clocks_that_go_on_take_the_timer_with_them
    a_timer_that_has_fired_is_armed_again_by_a_restore
}
