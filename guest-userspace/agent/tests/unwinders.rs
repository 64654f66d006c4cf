//! The unwinders find the stack that a thread has, at every instruction of a chain.
//!
//! What is true comes from the instructions: this test single-steps a chain from its root down to its leaf
//! and up again, and keeps the return addresses of the calls that it sees. Each walk runs in the
//! handler of the step's signal, as it would for a sample.

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
    use proptest::prelude::*;
    use unwindlab_abi::WorkloadKind;
    use unwindlab_agent::chain::interpreter;
    use unwindlab_agent::chain::{self, Chain};
    use unwindlab_agent::shared::SharedPages;
    use unwindlab_agent::unwinders::{Unwinders, Way, registers};
    use unwindlab_unwinder::{Frame, Register, Registers, Stack, Stop, Walk};

    const TRAP_FLAG: i64 = 1 << 8;
    const WAYS: [Way; 3] = [Way::FramePointers, Way::Dwarf, Way::Semantic];
    const ROOM: usize = 600;

    thread_local! {
        static WALKING: Cell<bool> = const { Cell::new(false) };
    }
    static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

    /// Counts what is allocated during a walk.
    struct Counting;

    impl Counting {
        fn count() {
            if WALKING.try_with(Cell::get).unwrap_or(false) {
                ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    // SAFETY: it hands everything to the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            Self::count();
            // SAFETY: as promised by the caller.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            Self::count();
            // SAFETY: as promised by the caller.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn unwinders() -> &'static Unwinders {
        static UNWINDERS: OnceLock<Unwinders> = OnceLock::new();
        UNWINDERS.get_or_init(|| Unwinders::new().unwrap())
    }

    fn walk(way: Way, from: Registers, stack: &Stack, frames: &mut [Frame]) -> Walk {
        WALKING.set(true);
        let walked = unwinders().walk(way, from, stack, frames);
        WALKING.set(false);
        walked
    }

    /// What one way found in a chain.
    #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
    struct Found {
        exact: usize,
        lost: usize,
        wrong: usize,
    }

    /// A chain being stepped through.
    struct Steps {
        root: (u64, u64),
        stack: Stack,
        inside: bool,
        is_done: bool,
        /// Return addresses, outermost first.
        calls: Vec<u64>,
        /// Interpreted functions that are called.
        depth: u32,
        deepest: u32,
        places: usize,
        most: usize,
        /// Frames that walks were to find.
        frames: usize,
        found: [Found; 3],
        stops: [Vec<Stop>; 3],
        complaint: Option<String>,
    }

    static STEPS: Mutex<Option<Steps>> = Mutex::new(None);
    /// Signal handlers are the process's.
    static ONE: Mutex<()> = Mutex::new(());

    impl Steps {
        /// Innermost first.
        fn truth(&self, ip: u64, way: Way) -> Vec<Frame> {
            let native: Vec<u64> = { self.calls.iter() }.rev().copied().collect();
            let all = [&[ip][..], &native].concat();
            let interpreter = interpreter::unwinder(&NoStep);
            let (start, end) = interpreter.framed;
            let frames = all.into_iter().enumerate().flat_map(|(index, address)| {
                let lookup = if index == 0 { address } else { address - 1 };
                let is_shown = way == Way::Semantic && self.depth > 0;
                if is_shown && (start..end).contains(&lookup) {
                    (0..self.depth).rev().map(Frame::Interpreted).collect()
                } else {
                    vec![Frame::Native(address)]
                }
            });
            frames.collect()
        }

        fn look(&mut self, from: Registers) {
            let ip = from.ip();
            let (called, returned) = interpreter::calls_and_returns();
            if ip == called {
                self.depth += 1;
                self.deepest = self.deepest.max(self.depth);
            } else if ip == returned {
                self.depth -= 1;
            }
            self.places += 1;
            self.most = self.most.max(self.calls.len() + 1);
            self.frames += self.calls.len() + 1;
            for (index, way) in WAYS.into_iter().enumerate() {
                let mut frames = [Frame::Native(0); ROOM];
                let walked = walk(way, from, &self.stack, &mut frames);
                let frames = &frames[..walked.frames];
                let truth = self.truth(ip, way);
                let found = &mut self.found[index];
                let is_prefix = truth.starts_with(frames);
                let wrong = { frames.iter() }.filter(|it| !truth.contains(it)).count();
                found.exact += usize::from(frames == truth);
                found.wrong += wrong;
                found.lost += truth.len() - (frames.len() - wrong).min(truth.len());
                if !self.stops[index].contains(&walked.stop) {
                    self.stops[index].push(walked.stop);
                }
                if way != Way::FramePointers && frames != truth && self.complaint.is_none() {
                    self.complaint = Some(format!(
                        "{way:?} at {ip:#x} (prefix: {is_prefix}): {frames:x?} {:?}, not {truth:x?}",
                        walked.stop
                    ));
                }
            }
        }
    }

    /// For the bounds of the interpreter only.
    struct NoStep;

    impl unwindlab_unwinder::Unwinder for NoStep {
        fn step(&self, _: &mut unwindlab_unwinder::At, _: &Stack) -> Result<(), Stop> {
            Err(Stop::NotDescribed)
        }
    }

    /// The instruction at an address.
    fn decode(ip: u64) -> iced_x86::Instruction {
        let code = std::ptr::with_exposed_provenance::<u8>(usize::try_from(ip).unwrap());
        // SAFETY: where the thread executes, it can read; functions are followed by others.
        let bytes = unsafe { std::slice::from_raw_parts(code, 15) };
        Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode()
    }

    extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the third argument of a handler with SA_SIGINFO.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let mut guard = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = guard.as_mut().unwrap();
        loop {
            let ip = registers(context).ip();
            steps.inside |= ip == steps.root.0 && !steps.is_done;
            let instruction = decode(ip);
            let gregs = &mut context.uc_mcontext.gregs;
            let next = instruction.next_ip();
            if !steps.inside {
                if instruction.mnemonic() == Mnemonic::Out {
                    gregs[libc::REG_RIP as usize] = next.cast_signed();
                    continue;
                }
                break;
            }
            if ip == steps.root.1 {
                (steps.inside, steps.is_done) = (false, true);
                gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
                return;
            }
            // Before it ends the chain and behind it, the root has a caller for who reads frame pointers.
            if steps.root.1 != 0 || !steps.calls.is_empty() {
                steps.look(registers(context));
            }
            let gregs = &mut context.uc_mcontext.gregs;
            match (instruction.flow_control(), instruction.mnemonic()) {
                // Not executed, but skipped: a port of the host, or the one system call, after which a step
                // would come one instruction late.
                (_, Mnemonic::Out) => {
                    gregs[libc::REG_RIP as usize] = next.cast_signed();
                    continue;
                }
                (_, Mnemonic::Syscall) => {
                    gregs[libc::REG_RIP as usize] = next.cast_signed();
                    gregs[libc::REG_RAX as usize] = 1;
                    continue;
                }
                (FlowControl::Call | FlowControl::IndirectCall, _) => steps.calls.push(next),
                (FlowControl::Return, _) if steps.calls.pop().is_none() => {
                    (steps.inside, steps.is_done) = (false, true);
                    gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
                    return;
                }
                _ => {}
            }
            break;
        }
        if !steps.is_done {
            context.uc_mcontext.gregs[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
    }

    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    fn handle(signal: c_int, handler: Handler, elsewhere: c_int) {
        // SAFETY: a zeroed sigaction is valid; the handler has the signature SA_SIGINFO wants.
        let answer = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | elsewhere;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(answer, 0);
    }

    /// The stack of the calling thread.
    fn own_stack() -> Stack {
        // SAFETY: the attributes are initialised by the first call; the thread's stack stays mapped.
        unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            let thread = libc::pthread_self();
            assert_eq!(libc::pthread_getattr_np(thread, &raw mut attributes), 0);
            let (mut low, mut size) = (std::ptr::null_mut(), 0);
            libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
            let low = low.expose_provenance() as u64;
            Stack::new(low, low + size as u64)
        }
    }

    fn symbol(name: &str) -> (u64, u64) {
        let symbols = chain::symbols();
        let found = symbols.iter().find(|s| s.name == name).unwrap();
        (found.start, found.end)
    }

    /// Steps through an iteration, from the root on.
    fn step_through(kind: WorkloadKind, frames: u32, root: (u64, u64)) -> Steps {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = Arc::new(SharedPages::new().unwrap());
        let chain = Chain::new(kind, 0, frames, 1, -1, shared).unwrap();
        unwinders();
        *STEPS.lock().unwrap() = Some(Steps {
            root,
            stack: own_stack(),
            inside: false,
            is_done: false,
            calls: Vec::new(),
            depth: 0,
            deepest: 0,
            places: 0,
            most: 0,
            frames: 0,
            found: Default::default(),
            stops: Default::default(),
            complaint: None,
        });
        handle(libc::SIGSEGV, on_signal, libc::SA_ONSTACK);
        handle(libc::SIGTRAP, on_signal, libc::SA_ONSTACK);
        take_signals_elsewhere();
        fill_the_stack();
        // SAFETY: the handler sets the trap flag, and takes it away at the end of the root.
        unsafe { libc::raise(libc::SIGTRAP) };
        chain.run();
        let steps = STEPS.lock().unwrap().take().unwrap();
        assert!(steps.is_done && steps.places > 0, "{kind:?}");
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
        steps
    }

    /// A stack for the thread's signals, so that they leave the chain's as it is.
    fn take_signals_elsewhere() {
        let memory = Vec::leak(vec![0_u8; 1 << 18]);
        let stack = libc::stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: memory.len(),
        };
        // SAFETY: the memory stays.
        let answer = unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
        assert_eq!(answer, 0);
    }

    /// What the chain's stack holds before: not zeros.
    #[inline(never)]
    fn fill_the_stack() {
        let mut words = [u64::MAX; 4096];
        std::hint::black_box(&mut words);
    }

    /// A chain with a frame pointer in each frame.
    fn framed(kind: WorkloadKind, frames: u32) -> Steps {
        let steps = step_through(kind, frames, (symbol("root").0, 0));
        assert_eq!(steps.most, frames as usize);
        assert_eq!(steps.complaint, None, "{kind:?}");
        steps
    }

    #[test]
    fn dwarf_is_exact_at_every_instruction_with_frame_pointers() {
        // With the instructions of the stub through which the leaf is called.
        for (kind, stub) in [
            (WorkloadKind::Deep, 1),
            (WorkloadKind::MissingPages, 0),
            (WorkloadKind::PerfCalls, 0),
        ] {
            for frames in [3, 13, 40] {
                let steps = framed(kind, frames);
                let [pointers, dwarf, semantic] = steps.found;
                assert_eq!((dwarf.exact, dwarf.wrong), (steps.places, 0));
                assert_eq!(semantic, dwarf);
                assert_eq!(steps.stops[1], [Stop::Root]);
                // Frame pointers lose the caller where a function has no frame yet, or no longer: its
                // first two instructions and its last, but not in the root; and in all of a stub.
                assert_eq!(pointers.wrong, 0);
                let losses = 3 * (frames as usize - 1) + stub;
                assert_eq!(steps.places - pointers.exact, losses);
                assert_eq!(pointers.lost, losses);
            }
        }
    }

    #[test]
    fn dwarf_is_exact_at_every_instruction_without_frame_pointers() {
        let (begin, returned) = symbol("bare_begin");
        // Behind the `nop` to which the chain returns. All of it is what the scenario
        // `frameless-every-instruction` passes, and what the kernel loses there: docs/sframe.md.
        let root = (begin, returned + 1);
        for (frames, expected) in [
            (3, (27, 66, 39)),
            (13, (127, 956, 829)),
            (40, (397, 8354, 7957)),
        ] {
            let steps = step_through(WorkloadKind::Frameless, frames, root);
            assert_eq!(steps.complaint, None);
            let [pointers, dwarf, semantic] = steps.found;
            assert_eq!((steps.places, steps.frames, pointers.lost), expected);
            assert_eq!((pointers.exact, pointers.wrong), (3, 0));
            assert_eq!((dwarf.exact, dwarf.lost, dwarf.wrong), (steps.places, 0, 0));
            assert_eq!(semantic, dwarf);
        }
    }

    #[test]
    fn the_leaf_that_asks_for_its_own_stack_is_described_as_the_others_are() {
        let (begin, returned) = symbol("bare_begin");
        for frames in [3, 13] {
            let steps = step_through(
                WorkloadKind::OwnStackFrameless,
                frames,
                (begin, returned + 1),
            );
            assert_eq!(steps.complaint, None);
            let [pointers, dwarf, _] = steps.found;
            // Frame pointers have none but the last three places of the root.
            assert_eq!((pointers.exact, pointers.wrong), (3, 0));
            assert_eq!((dwarf.exact, dwarf.lost, dwarf.wrong), (steps.places, 0, 0));
        }
    }

    #[test]
    fn the_interpreters_functions_are_known_at_every_instruction() {
        for frames in [4, 13] {
            let steps = framed(WorkloadKind::Interpreter, frames);
            let [pointers, dwarf, semantic] = steps.found;
            assert_eq!((dwarf.exact, dwarf.wrong), (steps.places, 0));
            assert_eq!((semantic.exact, semantic.wrong), (steps.places, 0));
            assert_eq!(steps.deepest, 3);
            assert_eq!(pointers.wrong, 0);
            assert_eq!(pointers.lost, 3 * (frames as usize - 1));
        }
    }

    static IN_SIGNAL: Mutex<Option<(u64, Vec<Frame>, Stop)>> = Mutex::new(None);

    extern "C" fn on_first(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the third argument of a handler with SA_SIGINFO.
        let interrupted = registers(unsafe { &*context.cast::<libc::ucontext_t>() });
        *IN_SIGNAL.lock().unwrap() = Some((interrupted.ip(), Vec::new(), Stop::Full));
        // SAFETY: its handler is there.
        unsafe { libc::raise(libc::SIGUSR2) };
    }

    extern "C" fn on_second(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: as above.
        let from = registers(unsafe { &*context.cast::<libc::ucontext_t>() });
        let mut frames = [Frame::Native(0); ROOM];
        let walked = walk(Way::Dwarf, from, &own_stack(), &mut frames);
        let mut seen = IN_SIGNAL.lock().unwrap();
        let (_, found, stop) = seen.as_mut().unwrap();
        found.extend(&frames[..walked.frames]);
        *stop = walked.stop;
    }

    #[test]
    fn a_walk_from_a_handler_goes_on_in_what_its_signal_interrupted() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        handle(libc::SIGUSR1, on_first, 0);
        handle(libc::SIGUSR2, on_second, 0);
        // SAFETY: its handler is there.
        unsafe { libc::raise(libc::SIGUSR1) };
        let (interrupted, frames, stop) = IN_SIGNAL.lock().unwrap().take().unwrap();
        let at = { frames.iter() }.rposition(|&it| it == Frame::Native(interrupted));
        // This function and what called it follow.
        assert!(
            at.is_some_and(|at| at > 2 && at + 4 < frames.len()),
            "{frames:x?}"
        );
        assert_eq!(stop, Stop::Root);
    }

    proptest! {
        /// Code of this program, and registers and a stack that lie: the walk ends, and what it reports
        /// was on the stack.
        #[test]
        fn stacks_that_lie_cost_frames_only(
            text in prop::collection::vec(any::<prop::sample::Index>(), 64),
            shape in prop::collection::vec((0_u8..3, 0_u64..64), 64),
            others in prop::array::uniform15(any::<u64>()),
            sp in 0_u64..72,
            fp in 0_u64..72,
        ) {
            let codes = codes();
            let mut memory = [u64::MAX; 80];
            let start = memory.as_ptr().expose_provenance() as u64 + 64;
            for (slot, (code, (kind, to))) in memory[8..72].iter_mut().zip(text.iter().zip(&shape)) {
                *slot = match kind {
                    0 => start + to * 8,
                    _ => *code.get(&codes),
                };
            }
            let mut from = Registers::new(*text[0].get(&codes), start + sp * 8, start + fp * 8);
            let named = [
                Register::Rax, Register::Rdx, Register::Rcx, Register::Rbx, Register::Rsi, Register::Rdi,
                Register::R8, Register::R9, Register::R10, Register::R11, Register::R12, Register::R13,
                Register::R14, Register::R15,
            ];
            for (register, value) in named.into_iter().zip(others) {
                from = from.with(register, if value % 2 == 0 { start + value % 512 } else { value });
            }
            // SAFETY: a part of the words above.
            let stack = unsafe { Stack::new(start, start + 512) };
            for way in WAYS {
                let mut frames = [Frame::Native(0); 80];
                let walked = walk(way, from, &stack, &mut frames);
                prop_assert!((1..=frames.len()).contains(&walked.frames));
                for frame in frames.iter().take(walked.frames).skip(1) {
                    // Nothing is interpreted: no word is such a number.
                    let Frame::Native(address) = *frame else { continue };
                    prop_assert!(memory[8..72].contains(&address) || others.contains(&address));
                }
            }
            prop_assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
        }
    }

    /// Addresses in functions of all kinds: the chain's, and the C library's.
    fn codes() -> Vec<u64> {
        let own = chain::symbols().into_iter().map(|it| (it.start, it.end));
        let symbols = own
            .filter(|it| it.0 != 0)
            .flat_map(|(start, end)| start..end);
        let library = [
            libc::qsort as *const () as u64,
            libc::printf as *const () as u64,
            libc::raise as *const () as u64,
            libc::memcpy as *const () as u64,
        ];
        let library = library.into_iter().flat_map(|it| it..it + 200);
        symbols.chain(library).collect()
    }
}
