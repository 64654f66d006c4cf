//! What a client learns from the answer to a request that is not its first of an entry.

use std::collections::BTreeMap;

use unwindlab_oracle::trace::lab::{LabKind, LabTrace};

/// Requests that returned more than 0, by what they returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// For 1 and for 2: those made before the client's callback of this cookie, and those made after it began.
    counts: BTreeMap<i32, (u64, u64)>,
}

impl Answers {
    /// Adds the requests of one log. A request for which no callback is in the log counts for neither.
    pub fn add(&mut self, lab: &LabTrace) {
        let mut called = BTreeMap::new();
        for event in &lab.events {
            if let LabKind::Callback { cookie, .. } = event.kind {
                called
                    .entry((event.task, event.client, cookie))
                    .or_insert(event.slot);
            }
        }
        for event in &lab.events {
            let LabKind::Request {
                ret, cookie, begin, ..
            } = event.kind
            else {
                continue;
            };
            let callback = called.get(&(event.task, event.client, cookie));
            let Some(&callback) = callback.filter(|_| ret == 1 || ret == 2) else {
                continue;
            };
            let (to_come, was_there) = self.counts.entry(ret).or_default();
            // One that began in the middle of the request may have been either.
            if callback > event.slot {
                *to_come += 1;
            } else if callback < begin {
                *was_there += 1;
            }
        }
    }

    /// One cell of a table.
    #[must_use]
    pub fn cell(&self) -> String {
        let cell = |(ret, (to_come, was_there)): (&i32, &(u64, u64))| {
            format!("{ret}: {to_come} to come, {was_there} there")
        };
        let cells: Vec<String> = self.counts.iter().map(cell).collect();
        match cells.is_empty() {
            true => "-".to_owned(),
            false => cells.join("; "),
        }
    }
}
