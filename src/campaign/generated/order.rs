//! In which order tests are made of a mutant: what killed its neighbours comes first.

use std::collections::BTreeMap;
use std::path::Path;

use unwindlab_guest_kernel::build::generate::{GeneratedMutant, Operator, killed};
use unwindlab_guest_kernel::build::header::Mutant;

use super::part::GeneratedRecord;
use crate::campaign::error::CampaignError;
use crate::report::mutation::{MutationFate, MutationRecord, MutationRow};
use unwindlab_guest_kernel::input;

/// What a kill of a mutant of the same function is worth, next to one of any other.
const SAME_FUNCTION: u32 = 8;
/// The same, of the same operator.
const SAME_OPERATOR: u32 = 2;
/// What it is worth that a chosen mutant, whose patch changes the file not far away, names the scenario.
const NAMED_NEARBY: u32 = 32;
/// What it is worth that the mutant was killed by it in an earlier run: nothing else comes first.
pub(super) const KILLED_IT: u32 = 1 << 20;
/// The largest file of an earlier run that is read.
const LARGEST: u64 = 256 << 20;
/// How far that is, in lines: the patches are of the kernel without its fixes.
const NEARBY: usize = 30;

/// Which test killed what.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The scenarios that chosen mutants name, and where in which file those change something.
    named: Vec<(String, String, usize)>,
    kills: Vec<(String, Operator, String)>,
    /// By name of a mutant: what killed it in an earlier run.
    before: BTreeMap<String, String>,
}

impl Order {
    /// At first: what is known to have killed a mutant, then the scenarios that most of the chosen mutants are made for, above all those
    /// of mutants nearby.
    pub(super) fn new(chosen: &[Mutant]) -> Self {
        let before = killed().map(|(name, test)| (name.to_owned(), test.to_owned()));
        let mut order = Self {
            before: before.collect(),
            ..Self::default()
        };
        for mutant in chosen {
            let places = places(&String::from_utf8_lossy(&mutant.patch.content));
            for scenario in &mutant.scenarios {
                let places = places.iter().cloned();
                let named = places.map(|(file, line)| (scenario.clone(), file, line));
                order.named.extend(named);
            }
        }
        order
    }

    /// Learns from the results of an earlier run, whatever kernel and program it was made with: this is for the order only.
    pub(super) fn learn_from(&mut self, path: &Path) -> Result<(), CampaignError> {
        let error = |why: String| CampaignError::Learn {
            path: path.to_owned(),
            why,
        };
        let text = input::text(path, LARGEST).map_err(|it| error(it.to_string()))?;
        let records =
            { text.lines() }.filter_map(|line| serde_json::from_str::<GeneratedRecord>(line).ok());
        let mut rows = 0;
        for record in records {
            if let MutationRecord::Mutant(row) = record.result {
                rows += 1;
                self.learn(&row);
                if let MutationFate::Killed(kill) = row.fate {
                    self.before.insert(row.mutant.name, kill.test);
                }
            }
        }
        match rows {
            0 => Err(error(
                "there is no result of a generated mutant in it".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Learns from a mutant.
    pub(super) fn learn(&mut self, row: &MutationRow) {
        if let MutationFate::Killed(kill) = &row.fate {
            let MutationRow { mutant, .. } = row;
            let kill = (mutant.function.clone(), mutant.operator, kill.test.clone());
            self.kills.push(kill);
        }
    }

    /// How probably a scenario kills this mutant, next to the others.
    pub(super) fn of(&self, mutant: &GeneratedMutant) -> impl Fn(&str) -> u32 + use<> {
        let mut worth: BTreeMap<String, u32> = BTreeMap::new();
        for (scenario, file, line) in &self.named {
            let is_near = *file == mutant.file && line.abs_diff(mutant.line) <= NEARBY;
            *worth.entry(scenario.clone()).or_default() += if is_near { NAMED_NEARBY } else { 1 };
        }
        for (function, operator, test) in &self.kills {
            let near = match (*function == mutant.function, *operator == mutant.operator) {
                (true, true) => SAME_FUNCTION * SAME_OPERATOR,
                (true, false) => SAME_FUNCTION,
                (false, true) => SAME_OPERATOR,
                (false, false) => 1,
            };
            *worth.entry(test.clone()).or_default() += near;
        }
        if let Some(test) = self.before.get(&mutant.name) {
            *worth.entry(test.clone()).or_default() += KILLED_IT;
        }
        move |name| worth.get(name).copied().unwrap_or_default()
    }
}

/// The files and lines at which a unified diff changes something.
fn places(diff: &str) -> Vec<(String, usize)> {
    let mut file = "";
    let mut places = Vec::new();
    for line in diff.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = name.trim();
        }
        let start = { line.strip_prefix("@@ -") }.and_then(|it| it.split([',', ' ']).next());
        let start = start.and_then(|it| it.parse::<usize>().ok());
        // Three lines of context come first.
        places.extend(start.map(|start| (file.to_owned(), start.saturating_add(3))));
    }
    places
}

#[cfg(test)]
mod tests {
    use unwindlab_guest_kernel::build::generate::ObjectCode;

    use super::*;
    use crate::campaign::generated::tests::mutant;
    use crate::report::mutation::Kill;

    #[test]
    fn what_is_known_to_have_killed_is_a_test_that_there_is() {
        let library = glob::glob(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/*.yaml")).unwrap();
        let stem = |it: &Path| it.file_stem().unwrap().to_string_lossy().into_owned();
        let library: Vec<String> = library.map(|it| stem(&it.unwrap())).collect();
        let mut count = 0;
        for (mutant, test) in killed() {
            let scenario = match test.split_once(' ') {
                Some(("set-up", number)) => {
                    assert!(number.parse::<u32>().is_ok(), "{mutant}: {test}");
                    continue;
                }
                Some(("sweep", sweep)) => sweep.split(' ').next().unwrap(),
                _ => test,
            };
            assert!(library.iter().any(|it| it == scenario), "{mutant}: {test}");
            count += 1;
        }
        assert!(count > 500, "{count}");
        let (name, test) = killed().next().unwrap();
        let order = Order::new(&[]);
        let worth = |name: &str| order.of(&mutant(name, ObjectCode::New))(test);
        assert!(worth(name) >= KILLED_IT && worth("x") < KILLED_IT);
    }

    #[test]
    fn what_a_patch_nearby_is_for_comes_first() {
        let diff =
            "--- a/kernel/unwind/user.c\n+++ b/kernel/unwind/user.c\n@@ -1,7 +1,6 @@\n a\n-b\n";
        let found = places(diff);
        assert_eq!(found, [("kernel/unwind/user.c".to_owned(), 4)]);
        let named = |scenario: &str, line| (scenario.to_owned(), found[0].0.clone(), line);
        let order = Order {
            named: vec![named("far", 200), named("far", 300), named("near", 4)],
            ..Order::default()
        };
        let of = mutant("x", ObjectCode::New);
        let worth = order.of(&of);
        assert!(worth("near") > worth("far") && worth("far") > worth("other"));
    }

    #[test]
    fn what_killed_it_in_an_earlier_run_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.jsonl");
        let row = |name: &str, test: &str| {
            let row = MutationRow {
                mutant: mutant(name, ObjectCode::New),
                fate: MutationFate::Killed(Kill {
                    by: vec!["M1".to_owned()],
                    test: test.to_owned(),
                    tests: 1,
                }),
                argued: None,
                seconds: 1.0,
            };
            let result = MutationRecord::Mutant(Box::new(row));
            serde_json::to_string(&GeneratedRecord { result }).unwrap()
        };
        let often = (0..40).map(|at| row(&format!("y{at}"), "often"));
        let lines = often.chain([row("x", "once"), "{}".to_owned()]);
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let mut order = Order::default();
        order.learn_from(&file).unwrap();
        let worth = order.of(&mutant("x", ObjectCode::New));
        assert!(worth("once") > worth("often") && worth("often") > worth("other"));
        let worth = order.of(&mutant("z", ObjectCode::New));
        assert!(worth("often") > worth("once"));
        std::fs::write(&file, "{}").unwrap();
        let error = order.learn_from(&file).unwrap_err().to_string();
        assert!(
            error.ends_with("no result of a generated mutant in it"),
            "{error}"
        );
    }
}
