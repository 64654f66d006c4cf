//! C4: what a cookie looks like.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// C4. A cookie is not 0, its low word is in 1..=nr_cpu, and its high word is odd: `id = cnt << 32
/// | cpu + 1` with `cnt |= 1` (`get_cookie`, kernel/unwind/deferred.c, 7.2). Judges every S and
/// every D.
///
/// The events of a bad cookie in a D are its story (`Facts::story`): the D alone would not show how
/// it came about.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for (&cookie, exchange) in &facts.exchanges {
        let Some(wrong) = flaw(cookie, trace.vcpus) else {
            tally.holds_on(exchange.requests.len() + exchange.answers.len());
            continue;
        };
        for answer in &exchange.answers {
            let (events, instruction) = facts.story(answer);
            let message = format!("record 22 carries cookie {cookie:#x}: {wrong}");
            tally.violated(message, events, instruction);
        }
        if let Some(request) = exchange.requests.first() {
            let message = format!("a sample carries cookie {cookie:#x}: {wrong}");
            let instruction = facts.instruction(request.event);
            tally.violated(message, [request.event.index], instruction);
        }
    }
}

/// What is wrong with a cookie on a machine with so many CPUs.
fn flaw(cookie: u64, cpus: u32) -> Option<String> {
    if cookie == 0 {
        return Some("0 is none".into());
    }
    let cpu = cookie & u64::from(u32::MAX);
    if cpu == 0 || cpu > u64::from(cpus) {
        return Some(format!("its low word is not in 1..={cpus}"));
    }
    ((cookie >> 32) & 1 == 0).then(|| "its high word is even".into())
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    #[test]
    fn cookies_as_the_kernel_makes_them_hold() {
        let mut kit = Kit::new(2);
        kit.nmi(1, 1001, 0xffff_ffff_0000_0002);
        kit.deferred(1, 1001, 0xffff_ffff_0000_0002, &[0x40]);
        assert_eq!(holds("C4", &kit).0, 2);
    }

    #[test]
    fn others_do_not() {
        for bad in [0, 3 << 32, 3 << 32 | 3, 2 << 32 | 1, 1] {
            let mut kit = Kit::new(2);
            let at = kit.nmi(0, 1001, bad);
            assert_eq!(violations("C4", &kit)[0].events, [at], "{bad:#x}");
        }
    }

    #[test]
    fn a_bad_cookie_of_an_answer_is_shown_with_its_story() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, 3 << 32 | 1);
        let stray = kit.deferred(0, 1001, 0, &[0x40]);
        let found = violations("C4", &kit);
        assert_eq!(found[0].events, [asked, stray]);
    }

    #[test]
    fn a_trace_without_cookies_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 1001);
        not_exercised("C4", &kit);
    }
}
