//! U7: the chain is what the frame pointers say, at every user instruction.

use unwindlab_abi::plan::EventSource;

use super::registers::{registers, walk};
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, described_by_sections, difference};
use crate::trace::Trace;

/// U7. D shows what the unwinder must find with the registers and on the stack that the sample of
/// its request holds (`PERF_SAMPLE_REGS_USER` with ip, sp and bp, `PERF_SAMPLE_STACK_USER`), step
/// by step as `unwind_user_next_common` is written (kernel/unwind/user.c, 7.3). This holds at any
/// instruction: in a prologue, where the frame pointer is still the caller's, the chain lacks the
/// immediate caller; in code without frame pointers it is what the register happens to hold.
///
/// Evidence is a D equal to such a chain that ends on the sampled stack: perf copies registers and
/// stack with other code than that which walks. Where the sampled stack ends first, the rest is not
/// known. Only a request in user mode violates it: the next thing that the task does is to be
/// unwound (P4). A request in the kernel may lie before a system call that changes the registers
/// (`rt_sigreturn`, `execve`), so there another chain is undecided. So it is where a uretprobe is open, whose trampoline a kernel
/// may replace by the caller, and where SFrame sections describe the code: a kernel that reads them shows what frame
/// pointers do not lead to.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for request in facts.requests.iter().filter(|r| r.cookie != 0) {
        let Some(registers) = registers(evidence, request.event) else {
            continue;
        };
        let stack = request.sample.stack_user.as_deref().unwrap_or_default();
        let answers = facts.exchanges.get(&request.cookie).map(|x| &x.answers);
        let Some(answer) = answers.and_then(|answers| answers.first()) else {
            continue;
        };
        let wanted = walk(registers, stack);
        let found = answer.chain.ips.as_slice();
        let same = match wanted.ended {
            true => found == wanted.frames,
            false => found.starts_with(&wanted.frames),
        };
        if same && wanted.ended {
            tally.holds();
        } else if same {
            tally.undecided("the sampled stack ends before the chain");
        } else if facts.user_ip(request.event).is_none() {
            tally.undecided("a request in the kernel, after which the registers may have changed");
        } else if let Some(why) = walks_otherwise(facts.trace, &wanted.frames) {
            tally.undecided(why);
        } else {
            let message = format!(
                "record 22 of cookie {:#x} is not what the registers and the stack say: {}",
                request.cookie,
                difference(found, &wanted.frames)
            );
            let events = [request.event.index, answer.event.index];
            tally.violated(message, events, Some(registers.ip));
        }
    }
}

/// Why a right kernel may show another chain than frame pointers lead to.
fn walks_otherwise(trace: &Trace, frames: &[u64]) -> Option<&'static str> {
    let specs = { trace.tracing.iter() }.flat_map(|it| &it.events);
    let mut sources = specs.map(|spec| &spec.source);
    let opened = sources.any(|it| {
        matches!(
            it,
            EventSource::Uprobe {
                at_return: true,
                ..
            }
        )
    });
    if opened {
        return Some("the sampled stack may have the trampoline of a uretprobe");
    }
    described_by_sections(trace, frames).then_some("sections describe the code")
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::EventSource;

    use crate::invariant::testkit::{self, Hit, Kit, kernel, user};
    use crate::invariant::{Check, testkit::check};
    use crate::trace::EventKind;

    const C: u64 = 3 << 32 | 1;
    const IP: u64 = 0x1004;

    fn trace(hit: Hit, stack: &[u64], frames: &[u64]) -> crate::trace::Trace {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| {
            spec.details.regs_user = 1 << 6 | 1 << 7 | 1 << 8
        });
        let at = kit.inject(0, 1001, C, hit);
        kit.deferred(0, 1001, C, frames);
        let mut trace = kit.trace();
        let EventKind::Sample(sample) = &mut trace.events[at].kind else {
            unreachable!()
        };
        sample.user_abi = 2;
        sample.regs_user = Some(vec![0x8000, 0x8000, IP]);
        sample.stack_user = Some(stack.iter().flat_map(|word| word.to_le_bytes()).collect());
        trace
    }

    fn judged(hit: Hit, stack: &[u64], frames: &[u64]) -> Check {
        check("U7", &trace(hit, stack, frames))
    }

    #[test]
    fn the_chain_on_the_stack_holds() {
        for hit in [user(IP), kernel(testkit::SOMEWHERE + 4)] {
            let check = judged(hit, &[0x8010, 0x2000, 0, 0x3000], &[IP, 0x2000, 0x3000]);
            assert!(
                matches!(check, Check::Holds { evidence: 1, .. }),
                "{check:?}"
            );
        }
    }

    #[test]
    fn another_chain_does_not() {
        for frames in [
            &[IP, 0x2000][..],
            &[IP, 0x2000, 0x3008],
            &[IP + 4, 0x2000, 0x3000],
        ] {
            let check = judged(user(IP), &[0x8010, 0x2000, 0, 0x3000], frames);
            assert!(matches!(check, Check::Violated(_)), "{check:?}");
        }
    }

    /// A kernel with the caller in place of the trampoline, and one that reads sections, are right.
    #[test]
    fn a_chain_that_frame_pointers_do_not_lead_to_is_undecided() {
        let stack = [0x8010, 0x7fff_f000, 0, 0x3000];
        let plain = trace(user(IP), &stack, &[IP, 0x2000, 0x3000]);
        assert!(matches!(check("U7", &plain), Check::Violated(_)));
        let mut probed = plain.clone();
        let specs = &mut probed.tracing.as_mut().unwrap().events;
        specs.push(testkit::spec(
            "probe",
            EventSource::Uprobe {
                symbol: "deep_leaf".into(),
                offset: 0,
                at_return: true,
            },
        ));
        let mut described = plain;
        described.program.covered = vec![(IP, IP + 1)];
        for trace in [probed, described] {
            let found = check("U7", &trace);
            assert!(
                matches!(found, Check::NotExercised { undecided: 1, .. }),
                "{found:?}"
            );
        }
    }

    /// A kernel that walks wrongly from there on shows these too.
    #[test]
    fn what_is_not_on_the_stack_or_may_have_changed_does_not_exercise_it() {
        let check = judged(user(IP), &[0x8010, 0x2000], &[IP, 0x2000, 0x3008]);
        assert!(matches!(check, Check::NotExercised { undecided: 1, .. }));
        let hit = kernel(testkit::SOMEWHERE + 4);
        let check = judged(hit, &[0, 0x2000], &[IP, 0x3000]);
        assert!(matches!(check, Check::NotExercised { undecided: 1, .. }));
    }
}
