//! The stacks that threads announce are the stacks they have: at every instruction of every
//! leaf, seen with the kernel's own way of walking.
//!
//! No port is allowed here, so each mark (an `out`) faults; the signal handler takes that as its
//! chance, walks, steps over the mark, and single-steps on through the leaf.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::ffi::{c_int, c_void};
    use std::sync::{Arc, Mutex, PoisonError};

    use rustix::thread::gettid;
    use unwindlab_abi::message::ExpectedStack;
    use unwindlab_abi::{WorkloadKind, WorkloadPlan, mark};
    use unwindlab_agent::chain;
    use unwindlab_agent::shared::SharedPages;
    use unwindlab_agent::system::online_cpus;
    use unwindlab_agent::workload::{Workload, WorkloadError};

    /// Instructions to step through after each mark: more than any leaf has between two marks,
    /// its loop aside.
    const STEPS: u32 = 100;
    /// `out dx, eax`.
    const OUT: u8 = 0xef;
    const TRAP_FLAG: i64 = 1 << 8;

    /// What the signal handler knows and finds.
    #[derive(Default)]
    struct Seen {
        expected: Vec<ExpectedStack>,
        /// Thread index by tid, learned from its marks.
        threads: HashMap<i32, usize>,
        steps: HashMap<i32, u32>,
        marks: Vec<(u8, u32)>,
        addresses: BTreeSet<u64>,
        walks: usize,
        wrong: Vec<String>,
    }

    static SEEN: Mutex<Option<Seen>> = Mutex::new(None);
    /// Signal handlers are the process's: one workload at a time.
    static ONE: Mutex<()> = Mutex::new(());

    fn pointer<T>(address: u64) -> *const T {
        std::ptr::with_exposed_provenance(usize::try_from(address).unwrap())
    }

    /// The walk of unwind_user_start and unwind_user_next_common, kernel/unwind/user.c.
    fn walk(ip: u64, mut sp: u64, mut fp: u64) -> Vec<u64> {
        let mut frames = vec![ip];
        while fp >= sp {
            let cfa = fp + 16;
            if cfa <= sp || !cfa.is_multiple_of(8) {
                break;
            }
            let word = |address: u64| {
                // SAFETY: a frame of this thread's own stack; a chain that leads elsewhere
                // ends the test by a crash, which is a failure as well.
                unsafe { pointer::<u64>(address).read() }
            };
            frames.push(word(cfa - 8));
            (sp, fp) = (cfa, word(cfa - 16));
        }
        frames
    }

    extern "C" fn on_signal(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the third argument of a handler with SA_SIGINFO.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let registers = &mut context.uc_mcontext.gregs;
        let register = |which: c_int| registers[which as usize].cast_unsigned();
        let ip = register(libc::REG_RIP);
        let frames = walk(ip, register(libc::REG_RSP), register(libc::REG_RBP));
        let eax = u32::try_from(register(libc::REG_RAX) & 0xffff_ffff).unwrap();
        // The interrupted code is the chain's, which holds no lock.
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.as_mut().unwrap();
        let tid = gettid().as_raw_nonzero().get();
        if signal == libc::SIGSEGV {
            // SAFETY: where the thread executes, it can read.
            let code = unsafe { pointer::<u8>(ip).read() };
            if code != OUT {
                eprintln!("a fault that is no mark, at {ip:#x}");
                std::process::abort();
            }
            let (what, thread) = mark::unpack(eax);
            seen.marks.push((what, thread));
            seen.threads.insert(tid, thread as usize);
            seen.steps.insert(tid, 0);
            registers[libc::REG_RIP as usize] += 1;
            registers[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
        let Some(&thread) = seen.threads.get(&tid) else {
            // A child, which has the flag from its parent.
            registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
            return;
        };
        let expected = &seen.expected[thread];
        let in_leaf = (expected.leaf_start..expected.leaf_end).contains(&ip);
        let steps = seen.steps.get_mut(&tid).unwrap();
        *steps += 1;
        if !in_leaf || *steps > STEPS {
            registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
        }
        if in_leaf {
            seen.walks += 1;
            seen.addresses.insert(ip);
            if frames.len() as u64 != expected.depth()
                || !frames.into_iter().skip(1).eq(expected.caller_addresses())
            {
                seen.wrong.push(format!("at {ip:#x}"));
            }
        }
    }

    fn handle(signal: c_int) {
        // SAFETY: a zeroed sigaction is valid; the handler has the signature SA_SIGINFO wants.
        let answer = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(answer, 0);
    }

    /// Runs a workload to its end, looking at every mark and the instructions after it.
    fn look_at(plan: &WorkloadPlan) -> Seen {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = Arc::new(SharedPages::new().unwrap());
        // Twice the same one where there is only one: migration then goes nowhere, which the
        // stacks do not mind.
        let online = online_cpus().unwrap();
        let cpus: Vec<u32> = online.into_iter().cycle().take(2).collect();
        let workload = Workload::start(plan, &cpus, shared, false, None).unwrap();
        let announces = workload.announces().to_vec();
        for (index, announce) in (0..).zip(&announces) {
            assert_eq!(announce.thread, index);
            assert_eq!(announce.pid, std::process::id());
            assert_eq!(announce.tid == 0, plan.kind == WorkloadKind::Exit);
            let frames = plan.frames + index * plan.frames_step;
            assert_eq!(announce.stack.depth(), u64::from(frames));
        }
        *SEEN.lock().unwrap() = Some(Seen {
            expected: announces.into_iter().map(|a| a.stack).collect(),
            ..Seen::default()
        });
        handle(libc::SIGSEGV);
        handle(libc::SIGTRAP);
        workload.release();
        let iterations = workload.join().unwrap().iterations;
        assert_eq!(iterations, vec![plan.iterations; plan.threads as usize]);
        let seen = SEEN.lock().unwrap().take().unwrap();
        assert_eq!(seen.wrong, Vec::<String>::new());
        seen
    }

    fn plan(kind: WorkloadKind, frames: u32) -> WorkloadPlan {
        WorkloadPlan {
            kind,
            frames,
            frames_step: 0,
            threads: 1,
            iterations: 3,
            wild_ends: false,
            huge_pages: false,
            reproducer: None,
            sframe: unwindlab_abi::plan::SframeSection::default(),
            program: None,
        }
    }

    fn symbol(name: &str) -> (u64, u64) {
        let symbols = chain::symbols();
        let found = symbols.iter().find(|s| s.name == name).unwrap();
        (found.start, found.end)
    }

    #[test]
    fn every_kind_has_its_stack_at_every_instruction_of_its_leaf() {
        let (arm, done) = ((mark::ARM, 0), (mark::DONE, 0));
        for (kind, prefix, marks) in [
            (WorkloadKind::Spin, "spin", &[arm, done][..]),
            (WorkloadKind::Syscalls, "syscalls", &[arm, done]),
            (WorkloadKind::Deep, "deep", &[arm, done]),
            (WorkloadKind::SleepMigrate, "sleep", &[arm, done]),
            (WorkloadKind::Fork, "fork", &[arm, done]),
            (WorkloadKind::Vfork, "fork", &[arm, done]),
            (WorkloadKind::Clone3, "fork", &[arm, done]),
            (WorkloadKind::MissingPages, "missing", &[arm, done]),
            (WorkloadKind::PerfCalls, "calls", &[arm, done]),
            (WorkloadKind::Exit, "exit", &[arm]),
        ] {
            for frames in [3, 4, 13, 509, 510, 511, 4096, 100_000] {
                let seen = look_at(&plan(kind, frames));
                assert_eq!(seen.marks, marks.repeat(3), "{kind:?}");
                // Two more instructions after each mark of three iterations, at least.
                assert!(seen.walks >= 3 * 3 * marks.len(), "{kind:?}");
                let inside = match kind {
                    WorkloadKind::Spin => symbol("spin_loop").0,
                    // What follows never runs.
                    WorkloadKind::Exit => symbol("exit_call").0,
                    // The return to user mode with the trap flag set runs one instruction.
                    _ => symbol(&format!("{prefix}_return")).1,
                };
                assert!(seen.addresses.contains(&inside), "{kind:?}");
            }
        }
    }

    #[test]
    fn the_steps_reach_the_leafs_ends() {
        for (kind, prefix) in [
            (WorkloadKind::Spin, "spin"),
            (WorkloadKind::Syscalls, "syscalls"),
            (WorkloadKind::Deep, "deep"),
            (WorkloadKind::SleepMigrate, "sleep"),
        ] {
            let seen = look_at(&plan(kind, 5));
            // `pop rbp` is one byte, and so is the `ret` at which the frame is gone.
            let (_, end) = symbol(&format!("{prefix}_leaf"));
            assert!(seen.addresses.contains(&(end - 2)), "{prefix}");
            assert!(!seen.addresses.contains(&(end - 1)), "{prefix}");
        }
    }

    #[test]
    fn threads_have_stacks_of_their_own() {
        for kind in [
            WorkloadKind::Spin,
            WorkloadKind::Deep,
            WorkloadKind::Exit,
            WorkloadKind::SleepMigrate,
        ] {
            let seen = look_at(&WorkloadPlan {
                frames_step: 7,
                threads: 4,
                ..plan(kind, 11)
            });
            let marking: BTreeSet<_> = seen.marks.iter().map(|&(_, thread)| thread).collect();
            assert_eq!(marking, BTreeSet::from([0, 1, 2, 3]));
        }
    }

    #[test]
    fn the_system_call_is_where_the_kernel_returns_to() {
        let shared = Arc::new(SharedPages::new().unwrap());
        for (kind, prefix) in [
            (WorkloadKind::Syscalls, "syscalls"),
            (WorkloadKind::Deep, "deep"),
            (WorkloadKind::SleepMigrate, "sleep"),
            (WorkloadKind::Exit, "exit"),
            (WorkloadKind::Fork, "fork"),
            (WorkloadKind::Process, "process"),
            (WorkloadKind::MissingPages, "missing"),
            (WorkloadKind::PerfCalls, "calls"),
            (WorkloadKind::Shapes, "shapes"),
            (WorkloadKind::PagedOut, "paged"),
        ] {
            let chain = chain::Chain::new(kind, 0, 3, 0, -1, Arc::clone(&shared)).unwrap();
            let stack = chain.expected_stack();
            let (call, next) = symbol(&format!("{prefix}_call"));
            assert_eq!((next, next - call), (stack.syscall_return, 2));
            assert_eq!(symbol(&format!("{prefix}_return")).0, next);
            assert!((stack.leaf_start..stack.leaf_end).contains(&next));
        }
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let start = |plan: &WorkloadPlan, cpus: &[u32]| {
            let shared = Arc::new(SharedPages::new().unwrap());
            Workload::start(plan, cpus, shared, false, None).unwrap_err()
        };
        let good = plan(WorkloadKind::Spin, 3);
        let none = WorkloadPlan {
            threads: 0,
            ..good.clone()
        };
        assert!(matches!(start(&none, &[0]), WorkloadError::Threads(0)));
        let many = WorkloadPlan {
            threads: 256,
            ..good.clone()
        };
        assert!(matches!(start(&many, &[0]), WorkloadError::Threads(256)));
        let short = WorkloadPlan {
            frames: 2,
            ..good.clone()
        };
        assert!(matches!(start(&short, &[0]), WorkloadError::Frames(2)));
        let huge = WorkloadPlan {
            frames: u32::MAX,
            threads: 255,
            ..good.clone()
        };
        assert!(matches!(start(&huge, &[0]), WorkloadError::Memory { .. }));
        let nowhere = plan(WorkloadKind::SleepMigrate, 3);
        assert!(matches!(start(&nowhere, &[0]), WorkloadError::OneCpu));
    }
}
