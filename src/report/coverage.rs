//! The lines of the kernel's source that a path executes, and at which an NMI was tried.

use std::collections::{BTreeMap, BTreeSet};

use unwindlab_guest_kernel::lines::of_interest;

use unwindlab_engine::plan::sweep::Step;
use unwindlab_scenario::SourceLines;

/// What a sweep did with a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineCoverage {
    /// Instructions of it on the path.
    pub executed: BTreeSet<u64>,
    /// Those at which an NMI was tried.
    pub tried: BTreeSet<u64>,
    /// How often the path executes one of them.
    pub times: usize,
}

/// A source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCoverage {
    /// Its path in the source tree.
    pub file: String,
    /// Every line that has code.
    pub lines: BTreeMap<u32, LineCoverage>,
}

impl FileCoverage {
    /// How many lines have code, how many of them were executed, and at how many an NMI was tried.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        let count = |of: fn(&LineCoverage) -> bool| self.lines.values().filter(|it| of(it)).count();
        [
            self.lines.len(),
            count(|it| !it.executed.is_empty()),
            count(|it| !it.tried.is_empty()),
        ]
    }
}

/// The files on the path that belong to deferred unwinding, to perf, and to kernel entry and exit.
/// `tried` holds numbers of steps.
#[must_use]
pub fn by_line(path: &[Step], tried: &BTreeSet<u32>, lines: &dyn SourceLines) -> Vec<FileCoverage> {
    let mut files: BTreeMap<String, BTreeMap<u32, LineCoverage>> = BTreeMap::new();
    for (point, step) in (0_u32..).zip(path).filter(|(_, step)| !step.user) {
        for (file, line) in lines.at(step.rip) {
            if !of_interest(file) {
                continue;
            }
            let line = files.entry(file.to_owned()).or_default().entry(line);
            let line = line.or_default();
            line.executed.insert(step.rip);
            line.times += 1;
            if tried.contains(&point) {
                line.tried.insert(step.rip);
            }
        }
    }
    for (file, covered) in &mut files {
        for line in lines.with_code(file) {
            covered.entry(line).or_default();
        }
    }
    files
        .into_iter()
        .map(|(file, lines)| FileCoverage { file, lines })
        .collect()
}

#[cfg(test)]
mod tests {
    use unwindlab_engine::plan::sweep::Reach;

    use unwindlab_guest_kernel::lines::LineError;

    use super::*;

    const UNWIND: &str = "kernel/unwind/deferred.c";

    /// Instructions 1 to 4 are of lines 11 to 14 of a file each, line 20 of which has code too.
    struct Source;

    impl SourceLines for Source {
        fn place(&self, file: &str, _: u32) -> Result<Vec<u64>, LineError> {
            Err(LineError::NoFile(file.to_owned()))
        }

        fn at(&self, address: u64) -> Vec<(&str, u32)> {
            let line = u32::try_from(address).unwrap() + 10;
            match address {
                1..=3 => vec![(UNWIND, line)],
                // A call, and what was inlined for it.
                4 => vec![(UNWIND, 13), (UNWIND, 14)],
                _ => vec![("mm/slub.c", line)],
            }
        }

        fn with_code(&self, _: &str) -> BTreeSet<u32> {
            BTreeSet::from([11, 12, 13, 14, 20])
        }

        fn text(&self, _: &str) -> Option<String> {
            None
        }
    }

    fn step(rip: u64, user: bool) -> Step {
        Step {
            rip,
            task: 1,
            user,
            reach: Reach::Stepped,
            local: false,
            clock: None,
        }
    }

    #[test]
    fn counts_what_was_executed_and_tried() {
        let path = [
            step(1, false),
            step(3, false),
            step(4, false),
            step(1, false),
            step(9, false),
            step(2, true),
        ];
        // Steps 2 and 3, and step 5 in user mode, which is no line of the kernel.
        let found = by_line(&path, &BTreeSet::from([2, 3, 5]), &Source);
        let [file] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((file.file.as_str(), file.counts()), (UNWIND, [5, 3, 3]));
        let line = |number| {
            let line = &file.lines[&number];
            (line.executed.len(), line.tried.len(), line.times)
        };
        assert_eq!(line(11), (1, 1, 2));
        assert_eq!(line(12), (0, 0, 0));
        assert_eq!(line(13), (2, 1, 2));
        assert_eq!(line(14), (1, 1, 1));
        assert_eq!(line(20), (0, 0, 0));
    }
}
