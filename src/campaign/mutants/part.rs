//! One part of the mutants (`--shard`), and the file of rows. Its units are the mutants and the kernel without one,
//! which is in one of the parts like any mutant: it must pass whatever kills a mutant of any part.

use serde::{Deserialize, Serialize};
use unwindlab_guest_kernel::build::header::Mutant;

use super::{CONTROL, MutantTest, MutantsRequest};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::part::file::PartFile;
use crate::campaign::part::{PartHead, PartOf, PartRequest, Unit, Units, hash};
use crate::campaign::program;
use crate::host::kernel_request::KernelRequest;
use crate::report::matrix::MutantRow;
use unwindlab_scenario::Loaded;

/// What is read and written of a row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::campaign) struct RowRecord {
    /// The row.
    pub(in crate::campaign) row: MutantRow,
}

/// A part, or all mutants.
#[derive(Default)]
pub(super) struct MutantsPart {
    made: Option<(PartRequest, PartFile)>,
    /// The names of all rows of all parts, in order.
    order: Vec<String>,
    /// The rows, as far as they are known.
    rows: Vec<MutantRow>,
}

impl MutantsPart {
    /// Opens the file, if there is one. `columns` and `library` are those of all parts.
    pub(super) fn open(
        request: &MutantsRequest,
        mutants: &[&Mutant],
        (columns, library): (&[String], &[Loaded]),
        context: Context<'_>,
    ) -> Result<Self, CampaignError> {
        let names = mutants.iter().map(|it| it.name.clone());
        let order: Vec<String> = [CONTROL.to_owned()].into_iter().chain(names).collect();
        let Some(part) = &request.part else {
            return Ok(Self {
                order,
                ..Self::default()
            });
        };
        // Each part builds it: it is what makes parts comparable, and mutants are built from its objects.
        let base = KernelRequest::Build(request.base.build_spec()?);
        let kernel = context.fetch(&base)?;
        let texts: Vec<&str> = library.iter().map(|it| it.text.as_str()).collect();
        let same = [
            ("kernel", kernel.hash().to_owned()),
            ("build of unwindlab", program::hash()?),
            (
                "choice of scenarios, --all or --sweep",
                request.test.word().to_owned(),
            ),
            ("text of a scenario", hash(&texts)),
        ];
        let patches = mutants.iter().map(|it| {
            let content = String::from_utf8_lossy(&it.patch.content);
            hash(&[&content])
        });
        let hashes = [String::new()].into_iter().chain(patches);
        let units = order.iter().zip(hashes).map(|(name, hash)| Units {
            name: name.clone(),
            hash,
            trials: None,
            explores: false,
        });
        let head = PartHead {
            columns: columns.to_vec(),
            ..PartHead::new(
                PartOf::Mutants,
                part.shard,
                same,
                units.collect(),
                kernel.release(),
            )
        };
        let file = PartFile::open(part, &head)?;
        let rows = { file.done.values() }.map(|line| serde_json::from_str::<RowRecord>(line));
        let rows: Result<Vec<RowRecord>, _> = rows.collect();
        Ok(Self {
            rows: rows?.into_iter().map(|it| it.row).collect(),
            made: Some((part.clone(), file)),
            order,
        })
    }

    /// Whether a mutant, or the kernel without one, is still to be tested here.
    pub(super) fn is_left(&self, mutant: Option<&Mutant>) -> bool {
        let name = mutant.map_or(CONTROL, |it| &it.name);
        self.made.as_ref().is_none_or(|(part, _)| {
            part.shard.has_name(name, None) && !self.rows.iter().any(|it| it.name == name)
        })
    }

    /// Takes a row.
    pub(super) fn take(&mut self, row: MutantRow) -> Result<(), CampaignError> {
        let record = RowRecord { row };
        if let Some((_, file)) = &mut self.made {
            let unit = Unit {
                name: record.row.name.clone(),
                trial: None,
            };
            file.write(&unit, &record)?;
        }
        self.rows.push(record.row);
        Ok(())
    }

    /// All rows, in order.
    pub(super) fn rows(mut self) -> Vec<MutantRow> {
        let order = self.order;
        self.rows
            .sort_by_key(|row| order.iter().position(|it| *it == row.name));
        self.rows
    }
}

impl MutantTest {
    /// In a word, for a file.
    const fn word(&self) -> &'static str {
        match self {
            Self::OwnScenarios => "own",
            Self::Scenarios(_) => "scenarios",
            Self::Sweep => "sweep",
        }
    }
}
