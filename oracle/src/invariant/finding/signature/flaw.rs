//! What is wrong with a signature as it is written.

use super::events::Kind;
use super::log::{LogKind, LogPattern};
use super::{CookieName, Signature};
use crate::invariant::finding::places::WINDOW;

impl Signature {
    /// What is wrong with it, if anything is.
    pub fn flaw(&self) -> Option<String> {
        let empty = self.events.is_empty() && self.log.is_empty();
        if let Some(receiver) = &self.receiver {
            let says = [receiver.side_band, receiver.inherited, receiver.exiting];
            if says.iter().all(Option::is_none) {
                return Some("it says nothing of the event that lacks a record".into());
            }
            let more = !empty || self.report.is_some() || self.instruction.is_some();
            return more.then(|| "an event that lacks a record is all of a signature".into());
        }
        if let Some(lines) = &self.report {
            let flaw = match () {
                () if lines.is_empty() || lines.iter().any(String::is_empty) => {
                    "a line of its report says nothing"
                }
                () if !empty => "a report has no events",
                () => return None,
            };
            return Some(flaw.into());
        }
        if empty {
            return Some("its signature has no events".into());
        }
        let asks = |it: &LogPattern| matches!(it.kind, LogKind::Request | LogKind::Refused);
        let carries = |it: &LogPattern| matches!(it.kind, LogKind::Request | LogKind::Callback);
        if self
            .log
            .iter()
            .any(|it| it.cookie.is_some() && !carries(it))
        {
            return Some("a record of the log has no cookie".into());
        }
        if self
            .log
            .iter()
            .any(|it| (it.interrupted.is_some() || it.around.is_some()) && !asks(it))
        {
            return Some("a record of the log interrupts nothing".into());
        }
        if self
            .log
            .iter()
            .any(|it| it.meanwhile.is_some() && !asks(it))
        {
            return Some("a record of the log takes no time".into());
        }
        if self.log.iter().any(|it| it.returned.is_some() && !asks(it)) {
            return Some("a record of the log returns nothing".into());
        }
        if self.events.iter().filter(|it| it.again).count() > 1 {
            return Some("two of its events may come again".into());
        }
        self.events.iter().find_map(|event| {
            let carries = matches!(event.kind, Kind::Sample | Kind::Deferred);
            let number = matches!(event.cookie, Some(CookieName::Number(n)) if n != 0);
            let sampled = matches!(event.kind, Kind::Sample | Kind::PlainSample);
            let flaw = match () {
                // A chain that was cut is wrong whoever's it is.
                () if event.cut == Some(true) && event.kind == Kind::PlainSample => return None,
                () if event.task.is_none() && (carries || sampled) => "must name its task",
                () if event.cookie.is_none() && carries => "must name its cookie",
                () if event.next_entry.is_some() && !carries => {
                    "is of no entry that a cookie tells"
                }
                () if event.cookie.is_some() && !carries => "has no cookie",
                () if number => "has a number other than 0 for a cookie",
                () if event.interrupted.is_some() && !sampled => "interrupts nothing",
                () if event.frames.is_some() && event.kind != Kind::Deferred => "has no frames",
                () if (event.made.is_some() || event.behind.is_some()) && !sampled => {
                    "is made nowhere"
                }
                () if event.shows_uprobes() && event.kind != Kind::Deferred => "has no frames",
                () if event.shifted.is_some() && event.kind != Kind::PlainSample
                    || event.as_built.is_some()
                        && !matches!(event.kind, Kind::PlainSample | Kind::Deferred) =>
                {
                    "has no chain of its own"
                }
                () if (event.next.is_some()
                    || event.previous.is_some()
                    || event.since.is_some())
                    && event.kind != Kind::Sample =>
                {
                    "has no answer beside it"
                }
                () if event.cut.is_some() && event.kind != Kind::PlainSample => "has no marker",
                () => return None,
            };
            Some(format!("an event of kind {:?} {flaw}", event.kind))
        })
    }

    /// Whether it names the finding's window.
    pub fn names_window(&self) -> bool {
        let events = self.events.iter().map(|it| &it.interrupted);
        let places = events.chain(self.events.iter().map(|it| &it.since));
        let places = places.chain(self.log.iter().map(|it| &it.interrupted));
        let behind = self.events.iter().any(|it| it.behind.is_some());
        behind
            || places
                .chain([&self.instruction])
                .flatten()
                .flatten()
                .any(|name| name == WINDOW)
    }
}
