//! What killed generated mutants in an earlier run: the lines of `guest-kernel/mutation/killed.txt`.

const TEXT: &str = include_str!("../../../mutation/killed.txt");

/// The name of each mutant and the test that killed it.
pub fn killed() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEXT.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
}
