//! Returns that the VMM executes in the place of the guest's instructions. The checks are in `vmm/src/checks/returns.rs`.
#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod guest;

guest::tests! {
    an_iret_to_itself_is_executed_twice
    a_stepped_iret_is_executed_again_where_the_vcpu_is_put_back_to_it
    an_interrupt_is_taken_once_though_the_vcpu_was_stopped_on_its_way
}
