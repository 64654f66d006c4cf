//! From the edit of a kernel to its verdict: `unwindlab run` on a kernel of which one line is another each time, built
//! and booted by that command.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use unwindlab_guest_kernel::input;

use super::{Better, Commands, Line, Row};
use crate::bench::command::CommandError;
use crate::bench::series::Series;

/// The scenarios.
const SCENARIOS: [&str; 3] = ["nmi-in-syscall", "nmi-in-sysret", "nmi-in-user-mode"];

/// Why a run is no measurement.
#[derive(Debug, thiserror::Error)]
enum EditError {
    /// The command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The patch or the results cannot be written or read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A line of the results.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Tested {
    kernel_hash: String,
}

impl Commands<'_> {
    /// Edits, builds and runs; a first time unmeasured, which has everything else built.
    #[must_use]
    pub fn edit(&self) -> Line {
        let mut seconds = Series::default();
        self.progress.step("building the kernel before the edits");
        if let Err(why) = self.edited() {
            seconds.fail(&why);
        }
        for round in 0..self.rounds {
            self.tell(Row::Edit, round);
            seconds.take(|| self.edited());
        }
        Line {
            row: Row::Edit,
            what: "a line of kernel/unwind/deferred.c changes, until 3 scenarios have their verdicts",
            unit: "s",
            better: Better::Less,
            ours: seconds,
            peer: None,
            promises: Vec::new(),
            notes: vec![
                "the edit is a `--patch`: apply, compile, link, boot, run; the unedited rest was built before"
                    .to_owned(),
            ],
            parameters: vec![self.words(&SCENARIOS)],
        }
    }

    fn edited(&self) -> Result<f64, EditError> {
        let folder = tempfile::tempdir()?;
        let (patch, results) = (
            folder.path().join("edit.patch"),
            folder.path().join("results"),
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        fs::write(&patch, edit(now.unwrap_or_default().as_nanos()))?;
        let more: [OsString; 6] = [
            "--patch".into(),
            patch.into(),
            "--json".into(),
            results.clone().into(),
            "--artifacts".into(),
            folder.path().join("logs").into(),
        ];
        let ended = self.run(&SCENARIOS, &more);
        // Nobody wants this kernel again.
        if let Some(hash) = hash(&results) {
            (self.forget)(&hash);
        }
        Ok(ended?.seconds)
    }
}

/// The hash of the kernel in a file of results, if there is one.
fn hash(results: &Path) -> Option<String> {
    let text = input::text(results, input::RECORDED).ok()?;
    let first: Tested = serde_json::from_str(text.lines().next()?).ok()?;
    Some(first.kernel_hash)
}

/// A patch that changes code, not only a comment: objects that stay the same are not linked again. Its context
/// is that of Linux 7.3, as it is and with the fixes of all findings.
fn edit(number: u128) -> String {
    format!(
        "\
--- a/kernel/unwind/deferred.c
+++ b/kernel/unwind/deferred.c
@@ -44,4 +44,6 @@
 /* Guards adding to or removing from the list of callbacks */
 static DEFINE_MUTEX(callback_mutex);
 static LIST_HEAD(callbacks);
+
+static const unsigned long unwindlab_bench __used = {}UL;
 
",
        // The lower half is another each time.
        number & u128::from(u64::MAX)
    )
}
