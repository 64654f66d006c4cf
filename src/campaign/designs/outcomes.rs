//! What comes of the same samples: both designs answer the NMIs of one trial.

use std::path::PathBuf;

use super::{Bench, row};
use crate::campaign::costs::Unmeasured;
use crate::campaign::error::CampaignError;
use crate::judge::designs;
use crate::report::designs::OutcomeRow;
use unwindlab_oracle::invariant::Designs;
use unwindlab_oracle::trace::Trace;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_scenario::Loaded;

/// The scenarios of the library, with what is special in each.
const SITUATIONS: [(&str, &str); 8] = [
    ("user-mode-nonce", "NMIs in user mode"),
    ("user-mode-nonce-dwarf", "code without frame pointers"),
    ("user-mode-burst", "20 NMIs in a system call"),
    ("user-mode-two-vcpus", "4 threads on 2 CPUs"),
    ("user-mode-blocked", "the signal is blocked"),
    ("user-mode-handler-calls", "NMIs in the handler"),
    ("user-mode-handler-hangs", "the handler never returns"),
    ("user-mode-storm", "300 frames under a storm"),
];

pub(super) fn outcomes(bench: &mut Bench<'_>) -> Result<Vec<OutcomeRow>, CampaignError> {
    let mut rows = Vec::new();
    for (name, situation) in SITUATIONS {
        bench.say(name)?;
        for loaded in bench.context.open(&[PathBuf::from(name)])? {
            rows.push(OutcomeRow {
                scenario: name,
                situation,
                found: row(outcome(bench, &loaded))?,
            });
        }
    }
    Ok(rows)
}

fn outcome(bench: &mut Bench<'_>, loaded: &Loaded) -> Result<Designs, Unmeasured> {
    let plan = bench.plan(loaded)?;
    let recording = bench.run(&plan)?;
    if let TrialEnd::Unsupported { reason } | TrialEnd::HostLacks { reason } = &recording.end {
        return Err(Unmeasured::Lack(reason.clone()));
    }
    if recording.end != TrialEnd::Completed {
        return Err(Unmeasured::Reason(format!(
            "the trial ended by {:?}",
            recording.end
        )));
    }
    let found = designs(&Trace::decode(&recording), bench.kernel.symbols());
    found.ok_or_else(|| Unmeasured::Reason("requests and samples are not in pairs".to_owned()))
}
