//! Which functions are changed: the table in `guest-kernel/mutation/scope.txt`.

const TABLE: &str = include_str!("../../../mutation/scope.txt");

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The file, from the root of the kernel's source.
    pub file: &'static str,
    /// The function; nothing for all that the file defines.
    function: Option<&'static str>,
    /// A changed line contains this text.
    only: Option<&'static str>,
    /// Why it is changed.
    pub why: &'static str,
}

impl Place {
    /// The places, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(Self::parse)
    }

    fn parse(line: &'static str) -> Option<Self> {
        let mut cells = line.split('|').map(str::trim);
        let mut cell = || cells.next();
        let (file, function, only, why) = (cell()?, cell()?, cell()?, cell()?);
        Some(Self {
            file,
            function: (function != "*").then_some(function),
            only: (!only.is_empty()).then_some(only),
            why,
        })
    }

    /// The files, each once, in the order of the table.
    pub fn files() -> Vec<&'static str> {
        let mut files: Vec<&str> = Self::all().map(|it| it.file).collect();
        files.dedup();
        files
    }

    /// Whether the table has what a function or macro does in a line of a file.
    pub fn covers(file: &str, function: &str, line: &str) -> bool {
        Self::all().any(|it| {
            it.file == file
                && it.function.is_none_or(|wanted| wanted == function)
                && it.only.is_none_or(|text| line.contains(text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_table_is_a_place() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(Place::all().count(), lines);
        for place in Place::all() {
            assert!(!place.file.is_empty() && !place.why.is_empty(), "{place:?}");
        }
        let mut files = Place::files();
        let found = files.len();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), found, "the lines of a file stand together");
    }

    #[test]
    fn a_line_may_be_all_that_is_changed_of_a_function() {
        let covers = |line| Place::covers("kernel/exit.c", "do_exit", line);
        assert!(covers("\tunwind_deferred_task_exit(tsk);"));
        assert!(!covers("\texit_mm();"));
        assert!(Place::covers("kernel/unwind/user.c", "anything", ""));
        assert!(!Place::covers("kernel/sched/core.c", "schedule", ""));
    }
}
