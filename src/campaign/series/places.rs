//! How the patches of a series apply.

use unwindlab_guest_kernel::BuildSpec;
use unwindlab_guest_kernel::build::application::{Application, Attempt};
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::build::series::{Series, SeriesPlace};

use super::SeriesSummary;
use crate::campaign::Context;
use crate::campaign::error::CampaignError;

/// What came of a place in a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceReport {
    /// The number of the patch in the series, from 1 on.
    pub number: usize,
    /// The patch; nothing if it is missing.
    pub title: String,
    /// How many trailers replies have for it.
    pub trailers: usize,
    /// Whether it applies.
    pub state: PlaceState,
}

/// Whether a patch applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceState {
    /// It was tried.
    Tried(Attempt),
    /// The series lacks it.
    Missing,
    /// Not tried, since the patch with this number does not apply or is missing.
    NotTried(usize),
}

impl PlaceState {
    /// Whether what follows lacks it.
    const fn is_gap(&self) -> bool {
        match self {
            Self::Tried(attempt) => matches!(attempt.application, Application::Conflicts(_)),
            Self::Missing | Self::NotTried(_) => true,
        }
    }
}

impl SeriesSummary {
    /// Counts a place.
    pub(super) const fn count(&mut self, state: &PlaceState) {
        match state {
            PlaceState::Missing => self.missing += 1,
            PlaceState::NotTried(_) => self.not_tried += 1,
            PlaceState::Tried(_) if state.is_gap() => self.conflicts += 1,
            PlaceState::Tried(_) => self.applied += 1,
        }
    }
}

/// Tries the patches in order. Behind one that does not apply or is missing, only with `skip`.
pub(super) fn places(
    series: &Series,
    spec: &BuildSpec,
    skip: bool,
    context: Context<'_>,
) -> Result<Vec<PlaceReport>, CampaignError> {
    let missing = |place: &SeriesPlace| matches!(place, SeriesPlace::Missing(_));
    let first_gap = series.places.iter().position(missing);
    let end = first_gap.filter(|_| !skip).unwrap_or(series.places.len());
    let tried = series.places.get(..end).unwrap_or_default();
    let patches: Vec<&Patch> = tried.iter().filter_map(SeriesPlace::patch).collect();
    let mut go_on = |it: &Application| skip || !matches!(it, Application::Conflicts(_));
    let attempts = context
        .provider
        .attempt(spec, &patches, &mut go_on, context.progress)?;
    let mut attempts = attempts.into_iter();
    let mut gap = None;
    let mut reports = Vec::new();
    for (place, number) in series.places.iter().zip(1..) {
        let attempt = match (gap, place) {
            (Some(gap), SeriesPlace::Patch(_)) if !skip => PlaceState::NotTried(gap),
            (_, SeriesPlace::Missing(_)) => PlaceState::Missing,
            (_, SeriesPlace::Patch(_)) => match attempts.next() {
                Some(attempt) => PlaceState::Tried(attempt),
                None => PlaceState::NotTried(number),
            },
        };
        if attempt.is_gap() {
            gap.get_or_insert(number);
        }
        let (title, trailers) = match place {
            SeriesPlace::Patch(patch) => (patch.patch.name.clone(), patch.trailers.len()),
            SeriesPlace::Missing(_) => (String::new(), 0),
        };
        reports.push(PlaceReport {
            number,
            title,
            trailers,
            state: attempt,
        });
    }
    Ok(reports)
}
