//! F5: no walk reads more than the section.

use unwindlab_abi::Observation;
use unwindlab_abi::sframe::SframeReads;

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// F5. Workload `sframe-reads` puts a section so that it begins and ends where pages do, and takes
/// its pages, the one before it and the one behind it out of the page tables, under userfaultfd: each
/// first access to one of them waits, and is seen. A page that is not the section's must stay
/// untouched, whatever the section says. The right sections come first: for them a walk touches the
/// page of the functions and that of the rows, or the trials are none.
///
/// Evidence is a walk that touched a page of the section. A walk that touched none (the section was
/// refused, or nothing was looked for) is counted.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let seen = evidence.trace().observations.iter();
    let pieces = seen.filter_map(|it| match it {
        Observation::SframeReads(piece) => Some(piece),
        _ => None,
    });
    let mut untouched = 0;
    let mut most: Option<&SframeReads> = None;
    for reads in pieces.flatten() {
        if reads.outside > 0 {
            tally.violated(
                format!(
                    "{}, number {}: the walk touched {} of the pages next to the section",
                    reads.case.name(),
                    reads.number,
                    reads.outside
                ),
                [],
                None,
            );
        } else if reads.inside > 0 {
            tally.holds();
        } else {
            untouched += 1;
        }
        if most.is_none_or(|most| reads.inside > most.inside) {
            most = Some(reads);
        }
    }
    tally.note(untouched, "walks that touched no page of their section");
    if let Some(most) = most {
        tally.excuse(format!(
            "most pages touched by a walk: {} of {} ({}, number {})",
            most.inside,
            most.pages,
            most.case.name(),
            most.number
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check};
    use unwindlab_abi::sframe::SframeCase;

    fn touched(inside: u32, outside: u32) -> Check {
        let mut trace = Kit::new(1).trace();
        trace.observations = vec![Observation::SframeReads(vec![SframeReads {
            case: SframeCase::Field,
            number: 3,
            pages: 3,
            inside,
            outside,
        }])];
        check("F5", &trace)
    }

    #[test]
    fn a_page_next_to_the_section_does_not_hold() {
        assert!(matches!(touched(2, 0), Check::Holds { evidence: 1, .. }));
        assert!(matches!(touched(2, 1), Check::Violated(_)));
        assert!(matches!(touched(0, 1), Check::Violated(_)));
    }

    #[test]
    fn a_walk_that_read_nothing_is_no_evidence() {
        assert!(matches!(touched(0, 0), Check::NotExercised { .. }));
    }

    #[test]
    fn the_walk_that_touched_most_is_named_and_those_that_touched_nothing_are_counted() {
        let reads = |number, inside| SframeReads {
            case: SframeCase::Field,
            number,
            pages: 3,
            inside,
            outside: 0,
        };
        let mut trace = Kit::new(1).trace();
        let all = [(1, 1), (2, 3), (3, 2), (4, 0), (5, 0), (6, 3)];
        let all = all.map(|(number, inside)| reads(number, inside));
        trace.observations = vec![Observation::SframeReads(all.to_vec())];
        let Check::Holds {
            evidence, excused, ..
        } = check("F5", &trace)
        else {
            panic!("does not hold");
        };
        assert_eq!(evidence, 4);
        assert_eq!(excused[0], "2 walks that touched no page of their section");
        assert!(excused[1].starts_with("most pages touched by a walk: 3 of 3"));
        assert!(excused[1].ends_with("number 2)"), "{excused:?}");
    }
}
