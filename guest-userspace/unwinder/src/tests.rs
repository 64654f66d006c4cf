//! Stacks that say what they say, and those that lie.

use std::vec::Vec;

use proptest::prelude::*;

use crate::{
    Activation, Call, Frame, FramePointers, Interpreted, MAX_CALLS, Region, Registers, Stack, Stop,
    Walk, walk,
};

/// Memory with a stack in the middle of it, so that a read beyond an end reads something.
struct Memory {
    words: Vec<u64>,
}

impl Memory {
    const AROUND: usize = 8;

    /// Words that name other words of the stack by number are made addresses by `link`.
    fn new(words: &[u64]) -> Self {
        let around = [u64::MAX; Self::AROUND];
        Self {
            words: [&around, words, &around].concat(),
        }
    }

    fn address(&self, word: usize) -> u64 {
        let start = self.words.as_ptr().expose_provenance() as u64;
        start + (Self::AROUND + word) as u64 * 8
    }

    fn set(&mut self, word: usize, value: u64) {
        self.words[Self::AROUND + word] = value;
    }

    fn stack(&self) -> Stack {
        let len = self.words.len() - 2 * Self::AROUND;
        // SAFETY: the words between, which live as long as the test.
        unsafe { Stack::new(self.address(0), self.address(len)) }
    }
}

const EVERYWHERE: Region<'_> = Region {
    start: 0,
    end: u64::MAX,
    unwinder: &FramePointers,
};

fn by_frame_pointers(memory: &Memory, sp: u64, fp: u64, room: usize) -> (Vec<Frame>, Stop) {
    let mut frames = std::vec![Frame::Native(0); room];
    let Walk { frames: n, stop } = walk(
        &[EVERYWHERE],
        Registers::new(0x1000, sp, fp),
        &memory.stack(),
        &mut frames,
    );
    frames.truncate(n);
    (frames, stop)
}

/// Frames at words 2, 6, 10; the last has no caller.
fn three_frames() -> Memory {
    let mut memory = Memory::new(&[0; 16]);
    for (word, next) in [(2, 6), (6, 10)] {
        memory.set(word, memory.address(next));
        memory.set(word + 1, 0x2000 + word as u64);
    }
    memory.set(11, 0x2000 + 10);
    memory
}

#[test]
fn frame_pointers_are_followed_to_the_root() {
    let memory = three_frames();
    let native = [0x1000, 0x2002, 0x2006, 0x200a].map(Frame::Native);
    let (sp, fp) = (memory.address(0), memory.address(2));
    assert_eq!(
        by_frame_pointers(&memory, sp, fp, 9),
        (native.to_vec(), Stop::Root)
    );
    for room in 0..4 {
        let (frames, stop) = by_frame_pointers(&memory, sp, fp, room);
        assert_eq!((&frames[..], stop), (&native[..room], Stop::Full));
    }
}

#[test]
fn frame_pointers_that_lead_elsewhere_end_the_walk() {
    let memory = three_frames();
    let sp = memory.address(0);
    let only_the_first = |fp| {
        let (frames, stop) = by_frame_pointers(&memory, sp, fp, 9);
        assert_eq!(frames, [Frame::Native(0x1000)]);
        stop
    };
    assert_eq!(only_the_first(sp - 8), Stop::NotGrowing);
    assert_eq!(only_the_first(sp + 4), Stop::OffStack);
    // The return address would be the first word behind the stack.
    assert_eq!(only_the_first(memory.address(15)), Stop::OffStack);
    assert_eq!(only_the_first(memory.address(16)), Stop::OffStack);
    assert_eq!(only_the_first(u64::MAX - 7), Stop::OffStack);
}

#[test]
fn frame_pointers_that_lead_back_end_the_walk() {
    let mut memory = three_frames();
    memory.set(6, memory.address(2));
    let (frames, stop) = by_frame_pointers(&memory, memory.address(0), memory.address(2), 99);
    assert_eq!((frames.len(), stop), (3, Stop::NotGrowing));
}

#[test]
fn code_of_nobody_is_reported_and_ends_the_walk() {
    let memory = three_frames();
    let registers = Registers::new(0x1000, memory.address(0), memory.address(2));
    let region = |start, end| Region {
        start,
        end,
        unwinder: &FramePointers,
    };
    let walked = |regions: &[Region<'_>]| {
        let mut frames = [Frame::Native(0); 9];
        let walked = walk(regions, registers, &memory.stack(), &mut frames);
        (walked.frames, walked.stop)
    };
    assert_eq!(walked(&[region(0x1001, 0x2000)]), (1, Stop::NoUnwinder));
    // A return address belongs to the code before it.
    assert_eq!(walked(&[region(0x1000, 0x2002)]), (3, Stop::NoUnwinder));
    let none = [region(0x1000, 0x1001), region(0x2002, 0x2006)];
    assert_eq!(walked(&none), (2, Stop::NoUnwinder));
}

#[test]
fn a_word_says_what_the_frame_is() {
    for frame in [
        Frame::Native(0),
        Frame::Native(0x7fff_ffff_f000),
        Frame::Interpreted(0),
        Frame::Interpreted(u32::MAX),
    ] {
        assert_eq!(Frame::from_word(frame.word()), frame);
    }
}

/// Words from the stack pointer of the interpreter to its frame pointer.
const DISTANCE: usize = size_of::<Activation>() / 8;

/// An interpreter's frame with these calls, called by two native frames.
fn interpreter(depth: u64, functions: &[u64]) -> Memory {
    let mut memory = Memory::new(&[0; DISTANCE + 16]);
    memory.set(0, depth);
    for (call, &function) in functions.iter().enumerate() {
        memory.set(1 + 2 * call, function);
    }
    memory.set(DISTANCE, memory.address(DISTANCE + 4));
    memory.set(DISTANCE + 1, 0x2000);
    memory.set(DISTANCE + 5, 0x2008);
    memory
}

fn semantic(memory: &Memory, ip: u64, room: usize) -> (Vec<Frame>, Stop) {
    let unwinder = Interpreted {
        framed: (0x1008, 0x1010),
        distance: DISTANCE as u64 * 8,
        functions: 3,
        native: &FramePointers,
    };
    let region = Region {
        start: 0x1000,
        end: 0x1018,
        unwinder: &unwinder,
    };
    let mut frames = std::vec![Frame::Native(0); room];
    let registers = Registers::new(ip, memory.address(0), memory.address(DISTANCE));
    let regions = [region, EVERYWHERE];
    let walked = walk(&regions, registers, &memory.stack(), &mut frames);
    frames.truncate(walked.frames);
    (frames, walked.stop)
}

#[test]
fn an_interpreter_shows_what_it_executes() {
    let memory = interpreter(3, &[0, 1, 2, 1]);
    let native = [0x2000, 0x2008].map(Frame::Native);
    let expected = [[2, 1, 0].map(Frame::Interpreted).to_vec(), native.to_vec()].concat();
    assert_eq!(semantic(&memory, 0x1008, 9), (expected.clone(), Stop::Root));
    assert_eq!(semantic(&memory, 0x1008, 2).0, expected[..2]);
    // Before its frame is complete, and after.
    for ip in [0x1000, 0x1010] {
        let plain = [&[Frame::Native(ip)][..], &native].concat();
        assert_eq!(semantic(&memory, ip, 9), (plain, Stop::Root));
    }
    // It executes nothing yet.
    let idle = [&[Frame::Native(0x100f)][..], &native].concat();
    assert_eq!(
        semantic(&interpreter(0, &[]), 0x100f, 9),
        (idle, Stop::Root)
    );
}

#[test]
fn an_interpreter_whose_data_make_no_sense_ends_the_walk() {
    let stop = Stop::BadInterpreter;
    let alone = [Frame::Native(0x1008)].to_vec();
    let deep = interpreter(MAX_CALLS as u64 + 1, &[0, 1]);
    assert_eq!(semantic(&deep, 0x1008, 9), (alone.clone(), stop));
    assert_eq!(semantic(&interpreter(1, &[3]), 0x1008, 9), (alone, stop));
    let outer = interpreter(2, &[3, 1]);
    let (frames, ended) = semantic(&outer, 0x1008, 9);
    assert_eq!((&frames[..], ended), (&[Frame::Interpreted(1)][..], stop));
}

#[test]
fn calls_lie_where_the_interpreter_writes_them() {
    assert_eq!(std::mem::offset_of!(Activation, calls), 8);
    assert_eq!(size_of::<Call>(), 16);
}

proptest! {
    /// Any stack and any registers: what is reported was on the stack, and the walk ends. A read outside of the
    /// bounds would report one of the words around the stack.
    #[test]
    fn stacks_that_lie_cost_frames_only(
        shape in prop::collection::vec((0_usize..40, any::<u64>(), 0_u8..4), 1..64),
        sp in 0_usize..40,
        fp in prop_oneof![(0_usize..40).prop_map(|it| (it, 0)), (0_usize..40, 0_u64..16)],
        far in prop::option::of(any::<u64>()),
        room in 0_usize..80,
    ) {
        let mut memory = Memory::new(&std::vec![0; shape.len()]);
        for (word, &(to, value, kind)) in shape.iter().enumerate() {
            let value = if kind == 0 { value } else { memory.address(to) };
            memory.set(word, value);
        }
        let sp = memory.address(sp);
        let fp = far.unwrap_or_else(|| memory.address(fp.0) + fp.1);
        let (frames, stop) = by_frame_pointers(&memory, sp, fp, room);
        prop_assert!(frames.len() <= room);
        prop_assert!(frames.len() < room || stop == Stop::Full || !frames.is_empty());
        let inside = &memory.words[Memory::AROUND..memory.words.len() - Memory::AROUND];
        for frame in frames.iter().skip(1) {
            let Frame::Native(address) = *frame else { panic!("no interpreter") };
            prop_assert!(inside.contains(&address));
        }
        // The same with an interpreter everywhere.
        let unwinder = Interpreted {
            framed: (0, u64::MAX),
            distance: DISTANCE as u64 * 8,
            functions: 3,
            native: &FramePointers,
        };
        let region = Region { start: 0, end: u64::MAX, unwinder: &unwinder };
        let mut frames = std::vec![Frame::Native(0); room];
        let registers = Registers::new(0x1000, sp, fp);
        let walked = walk(&[region], registers, &memory.stack(), &mut frames);
        prop_assert!(walked.frames <= room);
    }
}
