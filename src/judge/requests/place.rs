//! A place on a path at which a tracer can sit.

use std::fmt;

use serde::{Deserialize, Serialize};

use unwindlab_abi::SurveyedPlace;

/// How a tracer sits at a place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seat {
    /// A kprobe at a function's first instruction.
    Entry {
        /// The function.
        function: String,
    },
    /// A kretprobe: where the function returns to.
    Return {
        /// The function.
        function: String,
    },
    /// A tracepoint.
    Tracepoint {
        /// Its system.
        system: String,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Seat {
    /// As in a scenario's `event`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry { function } => write!(out, "kprobe:{function}"),
            Self::Return { function } => write!(out, "kretprobe:{function}"),
            Self::Tracepoint { system, name } => write!(out, "{system}:{name}"),
        }
    }
}

impl Seat {
    /// The function or tracepoint by its own name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Entry { function } | Self::Return { function } => function,
            Self::Tracepoint { name, .. } => name,
        }
    }
}

/// Who asks besides the tracer at the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Company {
    /// Nobody.
    Alone,
    /// The scenario's own events and clients.
    Beside,
}

impl Company {
    /// The word in reports and names.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Beside => "beside",
        }
    }
}

/// A place on a path, and who else asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Place {
    /// How the tracer sits there.
    pub seat: Seat,
    /// Who asks besides.
    pub company: Company,
    /// How often the survey saw it.
    pub hits: u64,
    /// In which contexts, as bits of [`unwindlab_abi::survey::context`].
    pub contexts: u8,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.seat, self.company.word())
    }
}

/// The places of surveys: each tracepoint, and the entry and the return of each function.
#[must_use]
pub fn places(surveyed: &[SurveyedPlace], company: Company) -> Vec<Place> {
    let place = |it: &SurveyedPlace, seat| Place {
        seat,
        company,
        hits: it.hits,
        contexts: it.contexts,
    };
    let mut all = Vec::new();
    for it in surveyed {
        let name = it.name.clone();
        match it.system.clone() {
            Some(system) => all.push(place(it, Seat::Tracepoint { system, name })),
            None => {
                let function = name.clone();
                all.push(place(it, Seat::Entry { function }));
                all.push(place(it, Seat::Return { function: name }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_two_places_and_a_tracepoint_one() {
        let surveyed = |system: Option<&str>, name: &str| SurveyedPlace {
            system: system.map(str::to_owned),
            name: name.to_owned(),
            hits: 2,
            contexts: 1,
        };
        let found = [surveyed(None, "f"), surveyed(Some("s"), "n")];
        let names: Vec<String> = places(&found, Company::Alone)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            names,
            ["kprobe:f (alone)", "kretprobe:f (alone)", "s:n (alone)"]
        );
    }
}
