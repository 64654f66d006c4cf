//! The score as a whole: its class, and what is said of it.

use std::collections::BTreeMap;

use unwindlab_engine::text::printable;

use super::{Control, MutationCounts, MutationFate, MutationRow, Standing};
use crate::judge::outcome::OutcomeClass;

/// What became of all generated mutants of a kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MutationScore {
    /// What became of the kernel without a mutant, if that is known.
    pub control: Option<Control>,
    /// The mutants.
    pub rows: Vec<MutationRow>,
}

impl MutationScore {
    /// What the mutants say of the tests. Bad if the kernel without a mutant does not pass, a
    /// mutant that nobody argued is not killed, or one that was argued is; else untested if no
    /// mutant was tested, or one or the kernel without a mutant could not be.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        let control = match &self.control {
            Some(Control::Clean) => OutcomeClass::Good,
            Some(Control::Unclean(_)) => OutcomeClass::Bad,
            Some(Control::Untested(_)) | None => OutcomeClass::Untested,
        };
        let rows = OutcomeClass::of_all(self.rows.iter().map(MutationRow::class));
        let nothing = (self.counts().tested() == 0).then_some(OutcomeClass::Untested);
        OutcomeClass::of_all([control, rows].into_iter().chain(nothing))
    }

    /// How many mutants count as what.
    #[must_use]
    pub fn counts(&self) -> MutationCounts {
        MutationCounts::of(&self.rows)
    }

    /// What killed how many, most first: invariants and words for outcomes. A mutant counts for
    /// each that killed it.
    #[must_use]
    pub fn killers(&self) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &self.rows {
            if let MutationFate::Killed(kill) = &row.fate {
                for by in &kill.by {
                    *counts.entry(by).or_default() += 1;
                }
            }
        }
        let mut killers: Vec<_> = counts.into_iter().collect();
        // Stable: the names stay in their order.
        killers.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let shown = killers.into_iter();
        shown.map(|(by, count)| (printable(by), count)).collect()
    }

    /// The median of the seconds that it took to kill a mutant; nothing if none was killed.
    #[must_use]
    pub fn median_seconds(&self) -> Option<f64> {
        let killed = self
            .rows
            .iter()
            .filter(|it| it.standing() == Standing::Killed);
        let mut seconds: Vec<f64> = killed.map(|it| it.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let middle = seconds.len() / 2;
        let above = *seconds.get(middle)?;
        match seconds.len() % 2 {
            0 => Some(f64::midpoint(*seconds.get(middle.checked_sub(1)?)?, above)),
            _ => Some(above),
        }
    }

    /// The seconds of all tests together.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.rows.iter().map(|it| it.seconds).sum()
    }

    /// All that is to be known, in some lines.
    #[must_use]
    pub fn summary(&self) -> String {
        self.summary_lines().join("\n")
    }

    pub(in crate::report) fn summary_lines(&self) -> Vec<String> {
        let counts = self.counts();
        let mut lines = vec![self.control_line(), generated_line(&counts)];
        if counts.untested > 0 {
            lines.push(format!(
                "{} of {} NOT TESTED: no number below is final",
                counts.untested,
                counts.own_objects()
            ));
        }
        lines.extend(counts.coverage().map(|it| {
            let missing = it.whole - it.part;
            let percent = it.percent();
            format!("{it} tested covered: {percent}; {missing} not covered")
        }));
        lines.push(match counts.score() {
            Some(score) => format!("{score} covered and not argued killed: {}", score.percent()),
            None => "no mutant is covered and not argued: there is no score".to_owned(),
        });
        if counts.tested() > 0 {
            lines.push(open_line(&counts));
        }
        lines.extend(self.kill_lines());
        let refuted = self.rows.iter().filter(|it| it.is_refuted());
        let refuted: Vec<String> = refuted.map(|it| printable(&it.mutant.name)).collect();
        if !refuted.is_empty() {
            let names = refuted.join(", ");
            lines.push(format!(
                "killed BUT ARGUED, so the argument is wrong: {names}"
            ));
        }
        lines
    }

    fn control_line(&self) -> String {
        match &self.control {
            Some(Control::Clean) => "the kernel without a mutant passes all tests".to_owned(),
            Some(Control::Unclean(test)) => format!(
                "the kernel without a mutant DOES NOT PASS {}: no kill proves anything",
                printable(test)
            ),
            Some(Control::Untested(reason)) => format!(
                "the kernel without a mutant was NOT TESTED: {}",
                printable(reason)
            ),
            None => "the kernel without a mutant was NOT TESTED".to_owned(),
        }
    }

    fn kill_lines(&self) -> Vec<String> {
        let killers = self.killers().into_iter();
        let killers: Vec<String> = killers.map(|(by, count)| format!("{by} {count}")).collect();
        let mut lines = Vec::new();
        if !killers.is_empty() {
            lines.push(format!("killed by: {}", killers.join(", ")));
        }
        if let Some(median) = self.median_seconds() {
            lines.push(format!("median time to kill: {median:.1} s"));
        }
        if !self.rows.is_empty() {
            lines.push(format!("all tests together: {:.0} s", self.seconds()));
        }
        lines
    }
}

fn generated_line(counts: &MutationCounts) -> String {
    format!(
        "{} generated; does not compile: {}, equivalent by object: {}, twin: {}, to test: {}",
        counts.generated,
        counts.no_code,
        counts.same,
        counts.twins,
        counts.own_objects()
    )
}

/// What was tested and not killed.
fn open_line(counts: &MutationCounts) -> String {
    format!(
        "not killed: {} survived, {} not covered; argued: {} survived, {} not covered",
        counts.survived, counts.not_covered, counts.argued_survived, counts.argued_not_covered
    )
}

impl MutationRow {
    /// What it says of the tests.
    #[must_use]
    pub const fn class(&self) -> OutcomeClass {
        match self.standing() {
            Standing::Killed if self.is_refuted() => OutcomeClass::Bad,
            Standing::NoCode
            | Standing::Same
            | Standing::Twin
            | Standing::Killed
            | Standing::Argued => OutcomeClass::Good,
            Standing::Survived | Standing::NotCovered => OutcomeClass::Bad,
            Standing::Untested => OutcomeClass::Untested,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{argued, killed, row, rows, survived};
    use super::*;

    fn class(control: Option<Control>, rows: Vec<MutationRow>) -> OutcomeClass {
        MutationScore { control, rows }.class()
    }

    #[test]
    fn the_control_decides_first() {
        let rows = || vec![row(1, killed(&["M1"]))];
        let why = || "why".to_owned();
        assert_eq!(class(Some(Control::Clean), rows()), OutcomeClass::Good);
        let unclean = Some(Control::Unclean(why()));
        assert_eq!(class(unclean.clone(), rows()), OutcomeClass::Bad);
        assert_eq!(class(unclean, Vec::new()), OutcomeClass::Bad);
        let untested = Some(Control::Untested(why()));
        assert_eq!(class(untested, rows()), OutcomeClass::Untested);
        assert_eq!(class(None, rows()), OutcomeClass::Untested);
    }

    #[test]
    fn one_mutant_that_is_not_as_it_should_be_decides() {
        let untested = || MutationFate::Untested("no".to_owned());
        for (fate, reason, wanted) in [
            (killed(&["M1"]), None, OutcomeClass::Good),
            (killed(&["M1"]), Some("why"), OutcomeClass::Bad),
            (survived(3), None, OutcomeClass::Bad),
            (survived(3), Some("why"), OutcomeClass::Good),
            (MutationFate::NotCovered, None, OutcomeClass::Bad),
            (MutationFate::NotCovered, Some("why"), OutcomeClass::Good),
            (untested(), None, OutcomeClass::Untested),
            (untested(), Some("why"), OutcomeClass::Untested),
            (MutationFate::DoesNotCompile, None, OutcomeClass::Good),
            (MutationFate::Equivalent, None, OutcomeClass::Good),
            (MutationFate::Twin("x".to_owned()), None, OutcomeClass::Good),
        ] {
            let mut one = row(2, fate.clone());
            if let Some(reason) = reason {
                one = argued(one, reason);
            }
            let rows = vec![row(1, killed(&["M1"])), one, row(3, killed(&["M1"]))];
            let found = class(Some(Control::Clean), rows);
            assert_eq!(found, wanted, "{fate:?}, {reason:?}");
        }
        let both = vec![row(1, untested()), row(2, survived(3))];
        assert_eq!(class(Some(Control::Clean), both), OutcomeClass::Bad);
    }

    #[test]
    fn nothing_is_untested_and_has_no_percentage() {
        assert_eq!(
            class(Some(Control::Clean), Vec::new()),
            OutcomeClass::Untested
        );
        let none = MutationScore::default();
        assert_eq!(none.class(), OutcomeClass::Untested);
        assert_eq!(
            (none.tables(), none.survivors()),
            (String::new(), String::new())
        );
        assert_eq!(
            none.summary(),
            "the kernel without a mutant was NOT TESTED\n\
             0 generated; does not compile: 0, equivalent by object: 0, twin: 0, to test: 0\n\
             no mutant is covered and not argued: there is no score"
        );
    }

    #[test]
    fn the_summary_says_all() {
        let mut score = MutationScore {
            control: Some(Control::Clean),
            rows: rows(),
        };
        insta::assert_snapshot!(score.summary());
        score.control = Some(Control::Unclean("nmi-in-idle".to_owned()));
        score.rows.push(argued(row(90, killed(&["M1"])), "wrong"));
        let summary = score.summary();
        let lines: Vec<&str> = summary.lines().collect();
        assert_eq!(
            lines.first(),
            Some(&"the kernel without a mutant DOES NOT PASS nmi-in-idle: no kill proves anything")
        );
        assert_eq!(
            lines.last(),
            Some(&"killed BUT ARGUED, so the argument is wrong: deferred.c:90:change-constant")
        );
    }

    #[test]
    fn killers_come_with_the_most_first() {
        let rows = [
            killed(&["C4"]),
            killed(&["M1", "C4"]),
            killed(&["hang"]),
            survived(1),
        ];
        let score = MutationScore {
            control: None,
            rows: rows
                .into_iter()
                .zip(1..)
                .map(|(fate, at)| row(at, fate))
                .collect(),
        };
        let killers = score.killers();
        let killers: Vec<(&str, usize)> =
            killers.iter().map(|(by, it)| (by.as_str(), *it)).collect();
        assert_eq!(killers, [("C4", 2), ("M1", 1), ("hang", 1)]);
    }

    #[test]
    fn the_median_is_that_of_the_killed() {
        let timed = |seconds: &[f64]| {
            let rows = seconds.iter().zip(1..).map(|(&seconds, at)| MutationRow {
                seconds,
                ..row(at, killed(&["M1"]))
            });
            let mut rows: Vec<MutationRow> = rows.collect();
            rows.push(MutationRow {
                seconds: 100.0,
                ..row(99, survived(3))
            });
            MutationScore {
                control: None,
                rows,
            }
        };
        let is =
            |found: Option<f64>, wanted: f64| found.is_some_and(|it| (it - wanted).abs() < 1e-9);
        assert_eq!(timed(&[]).median_seconds(), None);
        assert!(is(timed(&[3.0]).median_seconds(), 3.0));
        assert!(is(timed(&[9.0, 1.0, 3.0]).median_seconds(), 3.0));
        assert!(is(timed(&[9.0, 1.0, 3.0, 4.0]).median_seconds(), 3.5));
        assert!(is(Some(timed(&[9.0, 1.0]).seconds()), 110.0));
    }
}
