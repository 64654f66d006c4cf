//! One part of the places (`--shard`), and the file of verdicts. Its units are places, by their names: the survey of
//! another boot may find others.

use super::PlacesRequest;
use crate::campaign::error::CampaignError;
use crate::campaign::part::file::PartFile;
use crate::campaign::part::{PartHead, PartOf, PartRequest, Unit, Units, hash};
use crate::campaign::program;
use crate::host::provider::TestKernel;
use crate::judge::requests::{Place, PlaceRecord, RequestVerdicts};
use unwindlab_scenario::Loaded;

/// A part, and its file.
pub(super) struct PlacesPart {
    request: PartRequest,
    file: PartFile,
}

impl PlacesPart {
    /// Opens the file of a part whose survey found these places.
    pub(super) fn open(
        part: &PartRequest,
        request: &PlacesRequest,
        (loaded, kernel): (&Loaded, &dyn TestKernel),
        found: &[Place],
    ) -> Result<Self, CampaignError> {
        let same = [
            ("kernel", kernel.hash().to_owned()),
            ("build of unwindlab", program::hash()?),
            ("scenario", hash(&[&loaded.text])),
            ("choice of --function", request.only.join(", ")),
        ];
        let units = found.iter().map(|place| Units {
            name: place.to_string(),
            hash: String::new(),
            trials: None,
            explores: false,
        });
        let head = PartHead::new(
            PartOf::Requests,
            part.shard,
            same,
            units.collect(),
            kernel.release(),
        );
        Ok(Self {
            file: PartFile::open(part, &head)?,
            request: part.clone(),
        })
    }

    /// Whether a place is in this part, and does not stand in the file.
    pub(super) fn is_left(&self, place: &Place) -> bool {
        let unit = unit(place);
        self.request.shard.has_name(&unit.name, None) && !self.file.done.contains_key(&unit)
    }

    /// What stands in the file.
    pub(super) fn before(&self) -> Result<RequestVerdicts, CampaignError> {
        let mut verdicts = RequestVerdicts::default();
        for line in self.file.done.values() {
            verdicts.add(serde_json::from_str(line)?);
        }
        Ok(verdicts)
    }

    /// Writes the trial of a place to the file.
    pub(super) fn take(&mut self, record: &PlaceRecord) -> Result<(), CampaignError> {
        self.file.write(&unit(&record.verdict.place), record)
    }
}

fn unit(place: &Place) -> Unit {
    Unit {
        name: place.to_string(),
        trial: None,
    }
}
