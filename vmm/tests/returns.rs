//! Returns that the VMM executes in the place of the guest's instructions. They need a KVM that runs kernel code as a CPU
//! does; elsewhere these tests say that they skip.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use guest::{ADDRESS, guest, machine, next_stop, runs_kernel_code};
use unwindlab_vmm::{ReturnWatch, Run, Stop};

// An `iretq`, at 0x80, to itself, and from there on to 0xc0. Behind it is an endless loop.
guest!(returns_to_itself:
    "out 0xe0, eax"
    "mov rbx, rsp"
    "xor eax, eax"
    "mov ax, ss"
    "push rax"
    "push rbx"
    "pushfq"
    "mov ax, cs"
    "push rax"
    "lea rcx, [rip + 998b + 0xc0]"
    "push rcx"
    "mov rbx, rsp"
    "mov ax, ss"
    "push rax"
    "push rbx"
    "pushfq"
    "mov ax, cs"
    "push rax"
    "lea rcx, [rip + 998b + 0x80]"
    "push rcx"
    ".skip 0x80 - (. - 998b), 0x90"
    "iretq"
    "2: jmp 2b"
    ".skip 0xc0 - (. - 998b), 0x90"
    "out 0xe1, eax"
    "3: jmp 3b"
);

/// An NMI that comes right at the `iret` of another returns to it. KVM skips an `out` that is left in
/// place: the guest would run on behind the `iret`.
#[test]
fn an_iret_to_itself_is_executed_twice() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, returns_to_itself());
    machine.start().unwrap();
    assert!(matches!(
        next_stop(&mut machine),
        Stop::Port { port: 0xe0, .. }
    ));
    machine
        .watch_returns(ReturnWatch {
            sites: vec![ADDRESS + 0x80],
            current: 0,
            words: Vec::new(),
            most: 10,
        })
        .unwrap();
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    let stop = next_stop(&mut machine);
    assert!(matches!(stop, Stop::Port { port: 0xe1, .. }), "{stop:x?}");
}
