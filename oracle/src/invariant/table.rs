//! All invariants, a row each.

use super::{
    Invariant, abi, across, client, cookie, delivery, matching, own_stack, program, sframe, stack,
    task, user, user_mode, world,
};

/// All invariants, in the order of the catalogue (docs/invariants.md).
pub static INVARIANTS: &[Invariant] = &[
    // C: cookies
    Invariant::new(
        "C1",
        "all requests of a task in one kernel entry carry one cookie",
        "no two requests that are known to be of one entry",
        cookie::c1_stability::judge,
    )
    .and_log(cookie::lab_log::stability),
    Invariant::new(
        "C2",
        "entries with a user instruction between them have different cookies",
        "no two requests of a task with a proven user instruction between them",
        cookie::c2_freshness::judge,
    )
    .and_log(cookie::lab_log::freshness),
    Invariant::new(
        "C3",
        "two tasks never share a cookie",
        "fewer than two tasks with cookies",
        cookie::c3_uniqueness::judge,
    )
    .and_log(cookie::lab_log::uniqueness),
    Invariant::new(
        "C4",
        "a cookie is a CPU number below an odd count",
        "no cookies",
        cookie::c4_format::judge,
    )
    .and_log(cookie::lab_log::format),
    Invariant::new(
        "C5",
        "a cookie names the CPU of its first request",
        "no cookies",
        cookie::c5_birth::judge,
    )
    .and_log(cookie::lab_log::birth),
    Invariant::new(
        "C6",
        "the count in the cookies born on a CPU never decreases",
        "no two cookies born on one CPU",
        cookie::c6_order::judge,
    )
    .and_log(cookie::lab_log::order),
    Invariant::new(
        "C7",
        "the cookie of record 22 is one that some sample carried",
        "no record 22",
        cookie::c7_origin::judge,
    )
    .and_log(cookie::lab_log::origin),
    // M: matching
    Invariant::new(
        "M1",
        "every deferred sample gets its record 22 in the same entry",
        "no deferred samples",
        matching::m1_completeness::judge,
    )
    .and_log(matching::lab_log::completeness),
    Invariant::new(
        "M2",
        "at most one record 22 for a cookie, per buffer",
        "no record 22",
        matching::m2_once::judge,
    )
    .and_log(matching::lab_log::once),
    Invariant::new(
        "M3",
        "every record 22 answers a sample of the same entry",
        "no record 22",
        matching::m3_soundness::judge,
    ),
    Invariant::new(
        "M4",
        "record 22 carries the pid and tid of its sample",
        "no record 22 with a sample",
        matching::m4_identity::judge,
    ),
    Invariant::new(
        "M5",
        "record 22 comes after its first sample, in its entry, and late samples are of that entry",
        "no record 22 with a sample",
        matching::m5_later::judge,
    ),
    Invariant::new(
        "M6",
        "record 22 is written on the CPU on which the task runs",
        "no record 22 after a switch record in its ring",
        matching::m6_place::judge,
    ),
    Invariant::new(
        "M7",
        "an event that defers has an inline user chain only where the request was refused",
        "no sample of an event that defers has a cookie",
        matching::m7_inline::judge,
    ),
    // S: stacks
    Invariant::new(
        "S1",
        "record 22 shows the user stack at the time of the entry",
        "no record 22 of a workload thread at its leaf",
        stack::s1_identity::judge,
    )
    .and_log(stack::lab_log::identity),
    Invariant::new(
        "S2",
        "entries with different stacks give different records 22",
        "no two records 22 in a row whose stacks are known to differ",
        stack::s2_no_stale_cache::judge,
    ),
    Invariant::new(
        "S3",
        "all records 22 of one cookie are the same",
        "no cookie with two records 22",
        stack::s3_identical::judge,
    )
    .and_log(stack::lab_log::identical),
    Invariant::new(
        "S4",
        "no user instruction retires between a sample and its record 22",
        "no answered sample",
        stack::s4_no_user_code::judge,
    )
    .of_injections(),
    Invariant::new(
        "S5",
        "a deferred chain is what an event that does not defer sees at the same place",
        "no NMI sampled by an event that defers and by one that does not",
        stack::s5_inline_twin::judge,
    ),
    // D: duplicate suppression
    Invariant::new(
        "D1",
        "an entry gives records 22 of one cookie at most",
        "no record 22 of an entry of which more is known",
        delivery::d1_one_walk::judge,
    ),
    Invariant::of_log(
        "D2",
        "a client is called at most once in an entry",
        "no callback of the lab client",
        delivery::lab_log::one_callback,
    ),
    Invariant::new(
        "D3",
        "a deferred sample has no user chain of its own",
        "no deferred samples",
        delivery::d3_no_repeat::judge,
    ),
    Invariant::new(
        "D4",
        "the stack is walked once for each chain",
        "no event `kprobe:unwind_user`, or no task with two records 22",
        delivery::d4_walks::judge,
    ),
    // P: forward progress
    Invariant::of_log(
        "P1",
        "the task work runs once in an entry, and once more for each client that joins",
        "no callback of the lab client",
        delivery::lab_log::runs,
    ),
    Invariant::new(
        "P2",
        "a thread interrupted in the kernel gets back to user mode",
        "no workload thread with a known NMI in the kernel and a progress counter",
        delivery::p2_entry_ends::judge,
    )
    .and_log(delivery::lab_log::ends)
    .of_injections(),
    Invariant::new(
        "P3",
        "user instructions retire between two unwinds of a task",
        "no two unwinds of a task with a proven user instruction between them",
        delivery::p3_user_mode::judge,
    ),
    Invariant::new(
        "P4",
        "an NMI in user mode is answered before the next user instruction",
        "no answered NMI into user mode",
        delivery::p4_at_once::judge,
    )
    .of_injections(),
    Invariant::new(
        "P5",
        "an unwind that blocks on a page blocks only that task",
        "no walk waited for a page until it was let go",
        delivery::p5_only_that_task::judge,
    ),
    Invariant::new(
        "P6",
        "a task that is unwound again and again retires user instructions",
        "no workload thread with 256 records 22",
        delivery::p6_again_and_again::judge,
    ),
    // X: life cycle of tasks
    Invariant::new(
        "X1",
        "an entry that ends in exit is answered, with a real stack",
        "no record 22 with a known stack after the exit record of its task",
        task::x1_exit_answered::judge,
    )
    .and_log(task::lab_log::exit_answered),
    Invariant::new(
        "X2",
        "a request of an exiting task is refused",
        "no inline chain behind the exit record of a task",
        task::x2_exiting_refused::judge,
    )
    .and_log(task::lab_log::exiting_refused),
    Invariant::new(
        "X3",
        "a forked child starts with no cookie and no request",
        "no forked task with a cookie of its own whose parent had one when it was copied",
        task::x3_fork_clean::judge,
    ),
    Invariant::new(
        "X4",
        "an exec has one cookie before and after",
        "no exec between requests of its call and of its success (comm records needed)",
        task::x4_exec::judge,
    ),
    Invariant::new(
        "X5",
        "kernel threads have no deferred chains",
        "no sample of an event that defers in a known kernel thread",
        task::x5_kernel_threads::judge,
    )
    .and_log(task::lab_log::worker_refused),
    Invariant::new(
        "X6",
        "an entry that runs task work without leaving is answered early, and once",
        "no two injections into one system call of a thread that is traced or waits in \
         io_uring, with a record 22 between them",
        task::x6_early_answer::judge,
    )
    .of_injections(),
    Invariant::new(
        "X7",
        "nothing leaks over 10,000 exits of tasks that were unwound",
        "the agent did not look at the kernel's memory",
        task::x7_no_leak::judge,
    ),
    // A: perf's ABI
    Invariant::new(
        "A1",
        "the deferred marker comes once, followed by exactly the cookie",
        "no deferred marker in any chain",
        abi::a1_marker::judge,
    ),
    Invariant::new(
        "A2",
        "record 22 is as long as its frames say, at most 510, and of user mode",
        "no record 22",
        abi::a2_layout::judge,
    ),
    Invariant::new(
        "A3",
        "record 22 goes to every event that asked for it, and to no other",
        "no record 22 that several events ask for, or that one does not",
        abi::a3_receivers::judge,
    ),
    Invariant::new(
        "A4",
        "max_stack limits only the kernel part of a deferred sample",
        "no deferred sample of an event with max_stack that shows a cut, or an answer beyond it",
        abi::a4_max_stack::judge,
    ),
    Invariant::new(
        "A5",
        "what is missing is counted as lost",
        "no injections armed by a workload thread",
        abi::a5_counted::judge,
    ),
    Invariant::new(
        "A7",
        "an event's records land in the buffer it was opened for",
        "no records that tell their event, of several rings",
        abi::a7_own_buffer::judge,
    ),
    Invariant::new(
        "A8",
        "a chain has each context once, the kernel's first, and none that its event excludes",
        "no chain with an entry",
        abi::a8_contexts::judge,
    ),
    // U: the unwinder
    Invariant::new(
        "U1",
        "a walk ends after 510 frames, and a deeper stack gives exactly 510",
        "no record 22 of a stack that is known to have more than 510 frames",
        user::u1_ends::judge,
    ),
    Invariant::new(
        "U2",
        "a walk stops at the end of the chain of frame pointers",
        "no record 22 of a workload thread at the leaf of a stack below 510 frames",
        user::u2_stops::judge,
    ),
    Invariant::new(
        "U3",
        "a fault in the walk never signals the task",
        "no whole chain of a thread whose root leads to memory that cannot be read",
        user::u3_no_signal::judge,
    ),
    Invariant::new(
        "U4",
        "a walk brings in the pages that are not present",
        "no record 22 of a system call with its stack out of the page tables",
        user::u4_missing_pages::judge,
    ),
    Invariant::new(
        "U5",
        "32-bit code is walked with 4-byte words",
        "no record 22 of a thread at its leaf in 32-bit code",
        user::u5_word_size::judge,
    ),
    Invariant::new(
        "U6",
        "frame 0 is the user instruction pointer",
        "no record 22 of a known NMI into user mode",
        user::u6_frame_zero::judge,
    ),
    Invariant::new(
        "U7",
        "the chain is what the frame pointers say, at every user instruction",
        "no answered sample with the user registers and the user stack",
        user::u7_every_instruction::judge,
    ),
    // F: stacks without frame pointers
    Invariant::new(
        "F1",
        "the chain is that of the program where SFrame sections describe it",
        "no record 22 of an NMI at an instruction whose stack is known and described by sections",
        sframe::f1_every_instruction::judge,
    ),
    Invariant::new(
        "F2",
        "a frame that no section describes costs frames, and makes none up",
        "no record 22 of a known stack with a frame that no section describes",
        sframe::f2_not_covered::judge,
    ),
    Invariant::new(
        "F3",
        "a hostile SFrame section costs the task nothing but frames",
        "no request with a known section",
        sframe::f3_hostile::judge,
    ),
    Invariant::new(
        "F4",
        "a fork inherits SFrame sections; exec, unmapping and removal drop them",
        "no request through a section's life",
        sframe::f4_lives::judge,
    ),
    Invariant::new(
        "F5",
        "no walk reads more than the SFrame section",
        "no walk in a section whose reads are seen",
        sframe::f5_reads::judge,
    ),
    // O: a thread's own stack
    Invariant::new(
        "O1",
        "a thread that asks for its own stack gets it, to its end or to the end of the room",
        "no call for one's own stack that may succeed",
        own_stack::o1_truth::judge,
    ),
    Invariant::new(
        "O2",
        "a call for one's own stack that cannot be answered is refused, and writes nothing",
        "no call for one's own stack that cannot succeed",
        own_stack::o2_refused::judge,
    ),
    Invariant::new(
        "O3",
        "a call for one's own stack that its arguments refuse does not walk the stack",
        "no refused call of a thread that saw a walk in its page tables",
        own_stack::o3_untouched::judge,
    ),
    // N: stacks that a program finds itself
    Invariant::new(
        "N6",
        "what a program finds by frame pointers is what the kernel finds for the same cookie",
        "no program that unwinds itself and the kernel both found a stack of one cookie",
        program::n6_same_walk::judge,
    ),
    Invariant::new(
        "N7",
        "a thread that unwinds itself is asked for its own requests, once each",
        "no thread was asked for its stack",
        program::n7_asked_once::judge,
    ),
    Invariant::new(
        "N8",
        "what a program finds by .eh_frame is its stack, with what an interpreter executes",
        "no stack of a program that unwinds itself is known",
        program::n8_truth::judge,
    ),
    // R: requests and callbacks of clients
    Invariant::of_log(
        "R1",
        "the first request of a client in an entry returns 0, later ones 1 or more",
        "no request of the lab client",
        client::requests::first_is_zero,
    ),
    Invariant::of_log(
        "R2",
        "a cancelled client is refused",
        "no request of a cancelled client",
        client::requests::cancelled_is_refused,
    ),
    Invariant::of_log(
        "R3",
        "clients are limited, the next one gets -EBUSY",
        "no registration was refused",
        client::requests::limited,
    ),
    Invariant::of_log(
        "R4",
        "when cancelling has returned, no callback of that client runs",
        "no request was pending when its client was cancelled",
        client::callbacks::none_after_cancel,
    ),
    Invariant::of_log(
        "R5",
        "no client is called where it did not ask",
        "no callback while a client was registered that had not asked",
        client::callbacks::none_unasked,
    ),
    Invariant::new(
        "R6",
        "a request returns 0, 1, or -EINVAL where it may be refused",
        "no sample of a workload thread by an event that defers, and no request of the lab client",
        client::refusals::asked,
    )
    .and_log(client::refusals::returned),
    // N: unwinding in user mode
    Invariant::new(
        "N1",
        "a nonce is answered at most once",
        "no nonce",
        user_mode::n1_once::judge,
    ),
    Invariant::new(
        "N2",
        "the handler runs before any further instruction of the interrupted code",
        "no nonce",
        user_mode::n2_before_user_code::judge,
    ),
    Invariant::new(
        "N3",
        "the handler's stack is the thread's at the interruption",
        "no result of a workload thread at its leaf",
        user_mode::n3_truth::judge,
    ),
    Invariant::new(
        "N4",
        "a pending nonce is used again",
        "no two samples with a nonce in one entry",
        user_mode::n4_reuse::judge,
    ),
    Invariant::new(
        "N5",
        "a program sees the same of the kernel with and without",
        "no process with a twin that was sent a nonce",
        user_mode::n5_behaviour::judge,
    ),
    // T: across clients
    Invariant::new(
        "T1",
        "two clients that ask in one entry get one cookie",
        "no two requests of two clients that are known to be of one entry",
        across::t1_one_cookie::judge,
    ),
    Invariant::new(
        "T2",
        "the stacks that clients write under one cookie are the same",
        "no cookie with the stacks of two clients",
        across::t2_one_stack::judge,
    ),
    // W: the machine's own signs
    Invariant::new(
        "W0",
        "no warning, bug, stall or sanitizer report in the kernel log",
        "no line of a log that is whole",
        world::w0_console::judge,
    ),
    Invariant::new(
        "W1",
        "every ring buffer makes sense to its end",
        "no ring with records",
        world::w1_rings::judge,
    ),
    Invariant::new(
        "W2",
        "each NMI is taken once, at the instruction that was meant",
        "no sampled NMI before an instruction of the kernel that a scenario names",
        world::w2_exact::judge,
    ),
];
