//! The user registers and the user stack that a sample holds, and the chain that follows from them.

use crate::invariant::evidence::{Evidence, spec};
use crate::trace::model::MAX_DEFERRED_FRAMES;
use crate::trace::{Event, EventKind};

// Numbers of registers in `sample_regs_user` (`enum perf_event_x86_regs`,
// arch/x86/include/uapi/asm/perf_regs.h).
const BP: u32 = 6;
const SP: u32 = 7;
const IP: u32 = 8;
/// `PERF_SAMPLE_REGS_ABI_32`.
const ABI_32: u64 = 1;

/// The registers that a walk begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRegisters {
    /// The instruction pointer.
    pub ip: u64,
    sp: u64,
    bp: u64,
    /// Bytes of a word.
    word: u64,
}

/// The registers of the task at a sample that has them.
pub fn registers(evidence: &Evidence<'_>, event: &Event) -> Option<UserRegisters> {
    let EventKind::Sample(sample) = &event.kind else {
        return None;
    };
    let mask = spec(evidence.trace(), event)?.details.regs_user;
    let values = sample.regs_user.as_deref()?;
    let value = |register: u32| {
        let before = mask & ((1 << register) - 1);
        let at = usize::try_from(before.count_ones()).ok()?;
        (mask & (1 << register) != 0).then(|| values.get(at).copied())?
    };
    Some(UserRegisters {
        ip: value(IP)?,
        sp: value(SP)?,
        bp: value(BP)?,
        word: if sample.user_abi == ABI_32 { 4 } else { 8 },
    })
}

/// What the frame pointers on a stack lead to.
#[derive(Debug, PartialEq, Eq)]
pub struct Walk {
    /// The chain, innermost first.
    pub frames: Vec<u64>,
    /// It ends there. Otherwise it goes on where the stack was not sampled.
    pub ended: bool,
}

/// What `unwind_user` (kernel/unwind/user.c, 7.3) finds with these registers on this stack, which
/// begins at the stack pointer. Each step is that of `unwind_user_next_common` with the frame of
/// `ARCH_INIT_USER_FP_FRAME`: the return address lies above the word that the frame pointer leads
/// to, which holds the next one; the frame must lie above the last one, and be aligned.
pub fn walk(registers: UserRegisters, stack: &[u8]) -> Walk {
    further(registers, stack, vec![registers.ip], registers.sp)
}

/// As [`walk`], at a function's first instruction: the step to the caller is that of `ARCH_INIT_USER_FP_ENTRY_FRAME`, which
/// takes the return address from the top of the stack.
pub fn walk_from_entry(registers: UserRegisters, stack: &[u8]) -> Walk {
    let UserRegisters { ip, sp, word, .. } = registers;
    let frame = sp.checked_add(word).filter(|frame| frame % word == 0);
    let (Some(frame), Some(address)) = (frame, read(registers, stack, sp)) else {
        let (frames, ended) = (vec![ip], frame.is_none());
        return Walk { frames, ended };
    };
    further(registers, stack, vec![ip, address], frame)
}

/// The word at an address of the sampled stack.
fn read(registers: UserRegisters, stack: &[u8], address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(registers.sp)?).ok()?;
    let bytes = stack.get(at..at.checked_add(usize::try_from(registers.word).ok()?)?)?;
    let mut value = [0; 8];
    value.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(value))
}

/// The rest of a walk that has come to these frames and this stack pointer.
fn further(registers: UserRegisters, stack: &[u8], mut frames: Vec<u64>, mut sp: u64) -> Walk {
    let UserRegisters {
        bp: mut fp, word, ..
    } = registers;
    let read = |address| read(registers, stack, address);
    while frames.len() < MAX_DEFERRED_FRAMES {
        let Some(frame) = fp
            .checked_add(2 * word)
            .filter(|&frame| fp >= sp && frame > sp)
        else {
            break;
        };
        if frame % word != 0 {
            break;
        }
        let (Some(address), Some(next)) = (read(frame - word), read(frame - 2 * word)) else {
            return Walk {
                frames,
                ended: false,
            };
        };
        frames.push(address);
        (sp, fp) = (frame, next);
    }
    Walk {
        frames,
        ended: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: UserRegisters = UserRegisters {
        ip: 0x40,
        sp: 0x1000,
        bp: 0x1010,
        word: 8,
    };

    fn stack(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn frames_as_they_lie_on_the_stack() {
        let words = stack(&[0, 0, 0x1020, 0x50, 0, 0x60]);
        let found = walk(AT, &words);
        assert_eq!(
            found,
            Walk {
                frames: vec![0x40, 0x50, 0x60],
                ended: true
            }
        );
        let cut = walk(AT, &words[..32]);
        assert_eq!(
            cut,
            Walk {
                frames: vec![0x40, 0x50],
                ended: false
            }
        );
    }

    #[test]
    fn frame_pointers_that_lead_nowhere_end_it() {
        for bp in [0, 0x0ff8, 0x1014, u64::MAX - 7] {
            let found = walk(UserRegisters { bp, ..AT }, &stack(&[0; 8]));
            assert_eq!(
                found,
                Walk {
                    frames: vec![0x40],
                    ended: true
                },
                "{bp:#x}"
            );
        }
        // To its own frame.
        let found = walk(AT, &stack(&[0, 0, 0x1010, 0x50, 0, 0]));
        assert_eq!(
            found,
            Walk {
                frames: vec![0x40, 0x50],
                ended: true
            }
        );
    }

    #[test]
    fn at_an_entry_the_caller_is_on_top_of_the_stack() {
        let words = stack(&[0x50, 0, 0x1020, 0x60, 0, 0x70]);
        let found = |registers, stack| {
            let Walk { frames, ended } = walk_from_entry(registers, stack);
            (frames, ended)
        };
        assert_eq!(found(AT, &words), (vec![0x40, 0x50, 0x60, 0x70], true));
        // The caller's frame is the last.
        let last = UserRegisters { bp: 0, ..AT };
        assert_eq!(found(last, &words), (vec![0x40, 0x50], true));
        assert_eq!(found(last, &words[..8]), (vec![0x40, 0x50], true));
        assert_eq!(found(last, &words[..7]), (vec![0x40], false));
        let odd = UserRegisters { sp: 0x1001, ..AT };
        assert_eq!(found(odd, &words), (vec![0x40], true));
    }

    #[test]
    fn words_of_4_bytes() {
        let words = [0_u32, 0, 0, 0, 0, 0x50];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = walk(UserRegisters { word: 4, ..AT }, &bytes);
        assert_eq!(
            found,
            Walk {
                frames: vec![0x40, 0x50],
                ended: true
            }
        );
    }

    #[test]
    fn registers_are_there_if_the_sample_has_them() {
        use crate::invariant::Evidence;
        use crate::invariant::testkit::Kit;
        use crate::trace::EventKind;

        let all = 1 << IP | 1 << SP | 1 << BP;
        let found = |mask: u64| {
            let mut kit = Kit::new(1);
            kit.spec("nmi", |spec| spec.details.regs_user = mask);
            kit.nmi(0, 1001, 3 << 32 | 1);
            let mut trace = kit.trace();
            let EventKind::Sample(sample) = &mut trace.events[0].kind else {
                panic!("a sample");
            };
            sample.regs_user = Some((1..=u64::from(mask.count_ones())).collect());
            let evidence = Evidence::new(&trace);
            let found = registers(&evidence, evidence.facts().requests[0].event);
            found.map(|it| (it.ip, it.sp, it.bp))
        };
        // In the order of their numbers, others of lower numbers before them.
        assert_eq!(found(all), Some((3, 2, 1)));
        assert_eq!(found(all | 1), Some((4, 3, 2)));
        for missing in [IP, SP, BP] {
            assert_eq!(found(all & !(1 << missing)), None, "{missing}");
        }
    }

    #[test]
    fn a_walk_ends_where_the_kernels_does() {
        let frames = 600_u64;
        let words = (1..=frames).flat_map(|n| [0x1000 + 16 * n, 0x40 + n]);
        let stack = stack(&words.collect::<Vec<_>>());
        let registers = UserRegisters { bp: 0x1000, ..AT };
        let found = walk(registers, &stack);
        assert_eq!(
            (found.frames.len(), found.ended),
            (MAX_DEFERRED_FRAMES, true)
        );
    }
}
