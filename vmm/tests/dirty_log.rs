//! The log of written pages. The checks are in `vmm/src/checks/dirty_log.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    every_written_page_is_logged
}
