//! What the findings say of the code is found where it is, and nowhere else.

use std::collections::BTreeSet;

use super::Image;
use super::fixture::Built;
use crate::invariant::finding::{Findings, Presence, Resolver};

/// The findings that a kernel has by its code.
fn there(kernel: &impl Resolver) -> Vec<String> {
    let list = Findings::embedded().expect("well-formed");
    let found = list.in_image(kernel).into_iter();
    let there = found.filter(|(_, presence)| *presence != Presence::Absent);
    there.map(|(finding, _)| finding.id.to_string()).collect()
}

/// All but one of the findings.
fn without(id: &str) -> Vec<String> {
    let all = [
        "F001", "F002", "F003", "F004", "F005", "F006", "F007", "F008", "F009", "F010", "F011",
        "F012", "F013", "F014", "F015",
    ];
    let rest = all.into_iter().filter(|other| *other != id);
    rest.map(str::to_owned).collect()
}

#[test]
fn the_windows_are_these_instructions() {
    assert_eq!(there(&Built::default()), without(""));
    let list = Findings::embedded().expect("well-formed");
    let found = |id: &str| {
        let all = list.in_image(&Built::default());
        let found = all.into_iter().find(|(it, _)| it.id.as_str() == id);
        match found {
            Some((_, Presence::Windows(windows))) => windows,
            other => panic!("{other:?}"),
        }
    };
    let windows = |id: &str| {
        let windows = found(id).into_iter();
        let windows = windows.map(|it| (it.function, it.instructions));
        windows.collect::<Vec<(String, BTreeSet<u64>)>>()
    };
    let at = |name: &str, offsets: &[u64]| {
        let ips = offsets.iter().map(|offset| Built::at(name, *offset));
        vec![(name.to_owned(), ips.collect())]
    };
    // From behind the exchange to the store of the id.
    assert_eq!(windows("F001"), at("do_syscall_64", &[0x2c, 0x2e, 0x35]));
    // From the start to the call that removes the events.
    let start = [0, 1, 4, 9, 0xc];
    assert_eq!(windows("F004"), at("do_exit", &start));
    // From behind the load of the bit to its test.
    let test = [0x3e, 0x43, 0x48];
    // From behind the read of the mask to its exchange.
    let claim = [0x21, 0x22, 0x2a, 0x31, 0x34];
    assert_eq!(windows("F006"), at("unwind_deferred_request", &claim));
    assert_eq!(windows("F005"), at("process_unwind_deferred", &test));
    // From the last look at the flags to the reset, and where the loop ends.
    let mut behind = at("irqentry_exit", &[0xc, 0xe, 0x10, 0x15, 0x1a, 0x1c]);
    behind.extend(at("exit_to_user_mode_loop", &[0x11, 0x13, 0x15, 0x1a]));
    assert_eq!(windows("F011"), behind);
    let returns: Vec<BTreeSet<u64>> = found("F011").into_iter().map(|it| it.returns).collect();
    let ips = |name, offsets: &[u64]| offsets.iter().map(|it| Built::at(name, *it)).collect();
    assert_eq!(returns[0], ips("irqentry_exit", &[0x15, 0x1a]));
    assert_eq!(returns[1], ips("exit_to_user_mode_loop", &[0x1a]));
}

/// `static_cpu_has()` jumps to a test elsewhere until the kernel has patched itself, and code that
/// only a static branch leads to goes on with the registers of the rest.
#[test]
fn a_window_goes_on_behind_static_branches() {
    const START: u64 = 0xffff_ffff_8100_0000;
    #[rustfmt::skip]
    const CODE: &[u8] = &[
        0x65, 0x48, 0x8b, 0x1c, 0x25, 0x18, 0x20, 0x00, 0x00, // +0x0 mov rbx,qword gs:0x2018
        0x48, 0x8b, 0x03, // +0x9 mov rax,qword [rbx]
        0xe9, 0xef, 0x00, 0x00, 0x00, // +0xc jmp +0x100
        0xf0, 0x48, 0x0f, 0xb1, 0x8b, 0x00, 0x09, 0x00, 0x00, // +0x11 lock cmpxchg qword [rbx+0x900],rcx
        0xc3, // +0x1a ret
        0x90, // +0x1b nop
        0xeb, 0xeb, // +0x1c jmp +0x9
    ];
    #[rustfmt::skip]
    const ASIDE: &[u8] = &[
        0xa8, 0x01, // +0x100 test al,0x1
        0x0f, 0x85, 0x09, 0xff, 0xff, 0xff, // +0x102 jne +0x11
        0xe9, 0x04, 0xff, 0xff, 0xff, // +0x108 jmp +0x11
    ];
    struct Branches(bool);
    impl Resolver for Branches {
        fn function(&self, _: u64) -> Option<String> {
            None
        }
        fn has(&self, _: &str) -> bool {
            true
        }
        fn code(&self, name: &str) -> Option<(u64, Vec<u8>)> {
            let known = name == "do_syscall_64" || name == "unwind_deferred_request";
            known.then(|| (START, CODE.to_vec()))
        }
        fn text(&self, address: u64, _: usize) -> Option<Vec<u8>> {
            (self.0 && address == START + 0x100).then(|| ASIDE.to_vec())
        }
        fn current_task(&self) -> Option<u64> {
            Some(0x2018)
        }
    }
    let yaml = "{ in: [do_syscall_64], after: { load: flags }, through: { exchange: mask } }";
    let window: super::Window = serde_saphyr::from_str(yaml).expect("a window");
    let found = Image::new(&Branches(true)).windows(&window);
    assert_eq!(
        found[0].instructions,
        BTreeSet::from([START + 0xc, START + 0x11])
    );
    // What lies behind the jump is not known.
    assert!(Image::new(&Branches(false)).windows(&window).is_empty());
}

/// Debian's compiler takes the address of the mask of each task before it looks whether the bit is one, and
/// has the first task of the loop from another instruction than the rest.
#[test]
fn the_mask_of_each_task_of_a_loop_is_found_by_its_address() {
    #[rustfmt::skip]
    const CANCEL: &[u8] = &[
        0x48, 0x89, 0xfb, // +0x0 mov rbx,rdi
        0xc7, 0x43, 0x18, 0xff, 0xff, 0xff, 0xff, // +0x3 mov dword [rbx+0x18],0xffffffff
        0xe8, 0x13, 0x01, 0x00, 0x00, // +0xa call 015e <synchronize_srcu>
        0x48, 0x8b, 0x56, 0x10, // +0xf mov rdx,qword [rsi+0x10]
        0x48, 0x8d, 0x9a, 0x00, 0xfb, 0xff, 0xff, // +0x13 lea rbx,[rdx-0x500]
        0x48, 0x8d, 0xab, 0x00, 0x09, 0x00, 0x00, // +0x1a lea rbp,[rbx+0x900]
        0x41, 0x83, 0xfd, 0x3f, // +0x21 cmp r13d,0x3f
        0x77, 0x19, // +0x25 ja +0x40
        0xf0, 0x4c, 0x21, 0x75, 0x00, // +0x27 lock and qword [rbp],r14
        0x48, 0x8b, 0x93, 0x00, 0x05, 0x00, 0x00, // +0x2c mov rdx,qword [rbx+0x500]
        0x48, 0x8d, 0x9a, 0x00, 0xfb, 0xff, 0xff, // +0x33 lea rbx,[rdx-0x500]
        0x48, 0x39, 0xc2, // +0x3a cmp rdx,rax
        0x75, 0xdb, // +0x3d jne +0x1a
        0xc3, // +0x3f ret
        0x0f, 0x0b, // +0x40 ud2
    ];
    struct Debian(Vec<u8>);
    impl Resolver for Debian {
        fn function(&self, address: u64) -> Option<String> {
            Built::default().function(address)
        }
        fn has(&self, name: &str) -> bool {
            Built::default().has(name)
        }
        fn address(&self, name: &str) -> Option<u64> {
            Built::default().address(name)
        }
        fn code(&self, name: &str) -> Option<(u64, Vec<u8>)> {
            let (start, code) = Built::default().code(name)?;
            let ours = name == "unwind_deferred_cancel";
            Some((start, if ours { self.0.clone() } else { code }))
        }
        fn text(&self, address: u64, length: usize) -> Option<Vec<u8>> {
            Built::default().text(address, length)
        }
        fn current_task(&self) -> Option<u64> {
            Built::default().current_task()
        }
    }
    assert_eq!(there(&Debian(CANCEL.to_vec())), without(""));
    // The bit stays in the tasks, or another field of theirs is changed.
    let with = |at: usize, bytes: &[u8]| {
        let mut code = CANCEL.to_vec();
        code[at..at + bytes.len()].copy_from_slice(bytes);
        there(&Debian(code))
    };
    assert_eq!(with(0x27, &[0x90; 5]), without("F003"));
    assert_eq!(with(0x1d, &[0x08]), without("F003"));
}

#[test]
fn a_fix_takes_a_finding_out_of_the_code() {
    let built = |name, at, bytes| there(&Built(vec![(name, at, bytes)]));
    // The id is not stored to.
    let nops = &[0x90; 11];
    assert_eq!(built("do_syscall_64", 0x35, nops), without("F001"));
    // test ecx,ecx
    let sign = &[0x85, 0xc9, 0x90, 0x90, 0x90];
    assert_eq!(
        built("unwind_deferred_request", 0x11, sign),
        without("F002")
    );
    // mov rcx,qword [rbp+0x900]
    let again = &[0x48, 0x8b, 0x8d, 0x00, 0x09, 0x00, 0x00, 0x90];
    assert_eq!(
        built("process_unwind_deferred", 0x2b, again),
        without("F003")
    );
    // call unwind_deferred_task_exit; mov rdi,rbx; nop; call perf_event_exit_task
    let order = &[
        0xe8, 0xda, 0xff, 0xff, 0xff, 0x48, 0x89, 0xdf, 0x0f, 0x1f, 0x04, 0x00, 0xe8, 0x58, 0x00,
        0x00, 0x00,
    ];
    assert_eq!(built("do_exit", 0xc, order), without("F004"));
    // test eax,eax
    let sign = &[0x85, 0xc0, 0x90, 0x90, 0x90];
    assert_eq!(
        built("process_unwind_deferred", 0x3e, sign),
        without("F005")
    );
    // call uprobe_get_trampoline_vaddr
    let trampoline = &[0xe8, 0x29, 0x00, 0x00, 0x00];
    assert_eq!(built("unwind_user", 5, trampoline), without("F009"));
    // call unwind_deferred_flush
    let flush = &[0xe8, 0x0a, 0x00, 0x00, 0x00];
    assert_eq!(built("handler_chain", 5, flush), without("F010"));
    // test eax,0xf000000
    let hardirq = &[0xa9, 0x00, 0x00, 0x00, 0x0f];
    assert_eq!(
        built("unwind_deferred_request", 0x11, hardirq),
        without("F011")
    );
    // test eax,0x204004
    let worker = &[0xa9, 0x04, 0x40, 0x20, 0x00];
    assert_eq!(
        built("unwind_deferred_request", 0x40, worker),
        without("F012")
    );
    // mov rax,0x8265822300: bit 39, too
    assert_eq!(built("perf_event_alloc", 6, &[0x82]), without("F007"));
    // The cookie is stored right behind the marker.
    let nops = &[0x90; 4];
    assert_eq!(built("get_perf_callchain", 0xc, nops), without("F008"));
    // cmp byte [r12+0x30],0; movzx eax,byte [r12+0x30]; test byte [r12+0x30],1
    for chained in [
        &[0x41, 0x80, 0x7c, 0x24, 0x30, 0x00],
        &[0x41, 0x0f, 0xb6, 0x44, 0x24, 0x30],
        &[0x41, 0xf6, 0x44, 0x24, 0x30, 0x01],
    ] {
        assert_eq!(built("get_perf_callchain", 0x1e, chained), without("F014"));
    }
    // call synchronize_rcu
    let wait = &[0xe8, 0x14, 0x04, 0x00, 0x00, 0x90, 0x90];
    assert_eq!(built("unwind_deferred_cancel", 0x31, wait), without("F015"));
    // call __srcu_read_lock
    let lock = &[0xe8, 0x4a, 0xfd, 0xff, 0xff];
    assert_eq!(
        built("unwind_deferred_request", 0x11, lock),
        without("F015")
    );
}

#[test]
fn a_neighbour_is_not_a_finding() {
    let built = |name, at, bytes| there(&Built(vec![(name, at, bytes)]));
    // The mask is cleared by a plain store: mov qword [rdx],rcx
    let plain = &[0x48, 0x89, 0x0a, 0x90, 0x90];
    assert_eq!(built("do_syscall_64", 0x27, plain), without("F001"));
    // Another field of the task than the id is cleared.
    assert_eq!(built("do_syscall_64", 0x38, &[0x28]), without("F001"));
    // The cancellation does not clear the bit in the tasks.
    let nops = &[0x90; 8];
    assert_eq!(built("unwind_deferred_cancel", 0x22, nops), without("F003"));
    // Something else is done between the end of the events and the answer: call exit_mm
    let between = &[0xe8, 0x60, 0x00, 0x00, 0x00, 0x90, 0x90];
    assert_eq!(built("do_exit", 0x11, between), without("F004"));
    // The answer is not given.
    assert_eq!(
        built("unwind_deferred_task_exit", 0x12, &[0x90; 2]),
        without("F004")
    );
    // The bit is tested in a register: bt rcx,rax
    let register = &[0x48, 0x0f, 0xa3, 0xc1, 0x90];
    assert_eq!(
        built("process_unwind_deferred", 0x48, register),
        without("F005")
    );
    // The cancellation does not mark the client: nobody can take the mark for a bit.
    let unmarked = &[0x90; 7];
    assert_eq!(
        built("unwind_deferred_cancel", 0xb, unmarked),
        [
            "F001", "F004", "F006", "F007", "F008", "F009", "F010", "F011", "F012", "F013", "F014"
        ]
    );
    // The bits of side-band events are others: task is not among them.
    assert_eq!(built("perf_event_alloc", 3, &[0x03]), without("F007"));
    // The cookie is not stored at all.
    assert_eq!(
        built("get_perf_callchain", 0xc, &[0x90; 8]),
        without("F008")
    );
    // Trampolines stay in perf's own chain.
    let nops = &[0x90; 5];
    assert_eq!(built("get_perf_callchain", 0x14, nops), without("F014"));
    // The walk knows nothing of uprobes; the probed instruction is not executed.
    let nops = &[0x90; 5];
    assert_eq!(built("unwind_user", 0, nops), without("F009"));
    assert_eq!(built("uprobe_notify_resume", 5, nops), without("F010"));
    // The flags are looked at for the last time right before the reset, which is elsewhere.
    let nops = &[0x90; 9];
    assert_eq!(built("irqentry_exit", 0x1c, nops), without("F011"));
    // Requests of exiting tasks are not refused either: test eax,0x200000
    let threads = &[0xa9, 0x00, 0x00, 0x20, 0x00];
    assert_eq!(
        built("unwind_deferred_request", 0x40, threads),
        without("F012")
    );
}

/// Bytes that are none of an object: the recursion counter, a local one, the first of an object, one that is stored, a
/// word, and one before the trampolines are replaced.
#[test]
fn other_bytes_are_not_the_mark_of_a_chained_instance() {
    let built = |at, bytes| there(&Built(vec![("get_perf_callchain", at, bytes)]));
    for other in [
        // sub byte [rdx+rax*1],1; cmp byte [rsp+8],0; cmp byte [r12],0; mov byte [rsi+0x30],1; cmp word [rsi+0x30],0
        &[0x80, 0x2c, 0x02, 0x01, 0x90, 0x90],
        &[0x80, 0x7c, 0x24, 0x08, 0x00, 0x90],
        &[0x41, 0x80, 0x3c, 0x24, 0x00, 0x90],
        &[0xc6, 0x46, 0x30, 0x01, 0x90, 0x90],
        &[0x66, 0x83, 0x7e, 0x30, 0x00, 0x90],
    ] {
        assert_eq!(built(0x1e, other), without(""), "{other:x?}");
    }
    // cmp byte [rsi+0x30],0 in the place of the store of the cookie
    assert_eq!(built(0x10, &[0x80, 0x7e, 0x30, 0x00]), without(""));
}

#[test]
fn what_the_unwinder_is_told_is_in_its_tables() {
    let built = |changes| there(&Built(changes));
    let (addresses, entries) = ("__start_orc_unwind_ip", "__start_orc_unwind");
    let at = |distance: &'static [u8]| (addresses, 8, distance);
    // The stack ends where `sysretl`'s window begins, as with the fix.
    let end = (entries, 17, &[0x01][..]);
    assert_eq!(built(vec![at(&[0xdd]), end]), without("F013"));
    // One instruction later: the first is as before.
    assert_eq!(built(vec![at(&[0xe0]), end]), without(""));
    // Registers are where the window ends, and nowhere before.
    let call = (entries, 11, &[0x02][..]);
    let registers = (entries, 17, &[0x0b][..]);
    assert_eq!(built(vec![call, registers]), without("F013"));
    // Inside it.
    assert_eq!(built(vec![call, registers, at(&[0xe0])]), without(""));
    // Some of the registers (`ORC_TYPE_REGS_PARTIAL`).
    assert_eq!(built(vec![(entries, 11, &[0x0c])]), without("F013"));
    // All entries begin behind it.
    let late = (addresses, 0, &[0xf0, 0xff, 0xff, 0x7f][..]);
    let later = (addresses, 4, &[0xf0, 0xff, 0xff, 0x7f][..]);
    let latest = at(&[0xf0, 0xff, 0xff, 0x7f]);
    assert_eq!(built(vec![late, later, latest]), without("F013"));
}

/// A kernel with KASAN and the stack protector has slow paths behind `call __stack_chk_fail`.
#[test]
fn what_does_not_return_leads_nowhere() {
    const START: u64 = 0xffff_ffff_8100_0000;
    #[rustfmt::skip]
    const CODE: &[u8] = &[
        0x65, 0x48, 0x8b, 0x1c, 0x25, 0x18, 0x20, 0x00, 0x00, // +0x0 mov rbx,qword gs:0x2018
        0x48, 0x85, 0xff, // +0x9 test rdi,rdi
        0x74, 0x14, // +0xc je +0x22
        0xf0, 0x48, 0x0f, 0xb1, 0xbb, 0x00, 0x09, 0x00, 0x00, // +0xe lock cmpxchg qword [rbx+0x900],rdi
        0x48, 0x8b, 0x1c, 0x24, // +0x17 mov rbx,qword [rsp]
        0x74, 0x08, // +0x1b je +0x25
        0xe8, 0xde, 0x00, 0x00, 0x00, // +0x1d call +0x100
        0x90, // +0x22 nop
        0xeb, 0xe9, // +0x23 jmp +0xe
        0xc3, // +0x25 ret
    ];
    struct Protected(bool);
    impl Resolver for Protected {
        fn function(&self, _: u64) -> Option<String> {
            None
        }
        fn has(&self, _: &str) -> bool {
            true
        }
        fn address(&self, name: &str) -> Option<u64> {
            (self.0 && name == "__stack_chk_fail").then_some(START + 0x100)
        }
        fn code(&self, name: &str) -> Option<(u64, Vec<u8>)> {
            (name == "unwind_deferred_request").then(|| (START, CODE.to_vec()))
        }
        fn current_task(&self) -> Option<u64> {
            Some(0x2018)
        }
    }
    assert_eq!(Image::new(&Protected(true)).fields.mask, Some(0x900));
    // A call that returns brings what it left in the register.
    assert_eq!(Image::new(&Protected(false)).fields.mask, None);
}

#[test]
fn code_that_cannot_be_read_has_nothing() {
    struct Stripped;
    impl Resolver for Stripped {
        fn function(&self, _: u64) -> Option<String> {
            None
        }
        fn has(&self, _: &str) -> bool {
            true
        }
    }
    assert_eq!(there(&Stripped), [""; 0]);
    // No code, but bytes: one that is no instruction, and too many of them.
    for bytes in [&[0x06][..], &[0xcc], &[]] {
        struct Strange<'a>(&'a [u8]);
        impl Resolver for Strange<'_> {
            fn function(&self, _: u64) -> Option<String> {
                None
            }
            fn has(&self, _: &str) -> bool {
                true
            }
            fn code(&self, _: &str) -> Option<(u64, Vec<u8>)> {
                Some((0xffff_ffff_ffff_fff0, self.0.to_vec()))
            }
        }
        assert_eq!(there(&Strange(bytes)), [""; 0]);
    }
}
