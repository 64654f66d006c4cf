//! The file of results, and one part of the mutants (`--shard`). Its units are the mutants and the kernel without one.

use super::GeneratedRequest;
use super::tester::Tester;
use crate::campaign::error::CampaignError;
use crate::campaign::part::file::PartFile;
use crate::campaign::part::{PartHead, PartOf, PartRequest, Unit, Units, hash};
use crate::campaign::program;
use crate::host::provider::TestKernel;
use crate::report::mutation::MutationRecord;
use serde::{Deserialize, Serialize};
use unwindlab_guest_kernel::build::generate::GeneratedMutant;

/// The name of the kernel without a mutant.
pub(in crate::campaign) const CONTROL: &str = "(no mutant)";

/// What is read and written of a unit.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::campaign) struct GeneratedRecord {
    /// What became of it.
    pub(in crate::campaign) result: MutationRecord,
}

/// A part, or all mutants.
#[derive(Default)]
pub(super) struct GeneratedPart {
    made: Option<(PartRequest, PartFile)>,
    /// What stands in the file.
    pub(super) before: Vec<MutationRecord>,
}

impl GeneratedPart {
    /// Opens the file, if there is one.
    pub(super) fn open(
        request: &GeneratedRequest,
        kernel: &dyn TestKernel,
        mutants: &[GeneratedMutant],
        tester: &Tester<'_>,
    ) -> Result<Self, CampaignError> {
        let Some(part) = &request.part else {
            return Ok(Self::default());
        };
        let texts: Vec<&str> = tester.library.iter().map(|it| it.text.as_str()).collect();
        let sweeps: Vec<&str> = tester.sweeps.iter().map(|it| it.text.as_str()).collect();
        let same = [
            ("kernel", kernel.hash().to_owned()),
            ("build of unwindlab", program::hash()?),
            ("text of a scenario", hash(&texts)),
            ("set of sweeps", hash(&sweeps)),
            ("choice of --budget", tester.budget.as_secs().to_string()),
        ];
        let hashes = mutants.iter().map(|it| (&it.name, hash(&[&it.diff])));
        let control = (&CONTROL.to_owned(), String::new());
        let units = [control].into_iter().chain(hashes);
        let units = units.map(|(name, hash)| Units {
            name: name.clone(),
            hash,
            trials: None,
            explores: false,
        });
        let units = units.collect();
        let head = PartHead::new(PartOf::Generated, part.shard, same, units, kernel.release());
        let file = PartFile::open(part, &head)?;
        let records = file.done.values();
        let records = records.map(|line| serde_json::from_str::<GeneratedRecord>(line));
        let records: Result<Vec<GeneratedRecord>, _> = records.collect();
        Ok(Self {
            before: records?.into_iter().map(|it| it.result).collect(),
            made: Some((part.clone(), file)),
        })
    }

    /// Whether a mutant, or the kernel without one, is still to be tested here.
    pub(super) fn is_left(&self, name: &str) -> bool {
        self.made.as_ref().is_none_or(|(part, file)| {
            part.shard.has_name(name, None) && !file.done.contains_key(&unit(name))
        })
    }

    /// Writes a result.
    pub(super) fn take(&mut self, result: &MutationRecord) -> Result<(), CampaignError> {
        let Some((_, file)) = &mut self.made else {
            return Ok(());
        };
        let name = match result {
            MutationRecord::Control(_) => CONTROL,
            MutationRecord::Mutant(row) => &row.mutant.name,
        };
        let record = GeneratedRecord {
            result: result.clone(),
        };
        file.write(&unit(name), &record)
    }
}

fn unit(name: &str) -> Unit {
    Unit {
        name: name.to_owned(),
        trial: None,
    }
}
