//! The block that a self-test prints: short, plain, and complete enough to be sent in.

use std::time::{Duration, SystemTime};

use unwindlab_engine::plan::self_test::{AboutKvm, CheckVerdict, Checked, Tally};
use unwindlab_engine::text::printable;

/// The commit that this program was built from, with `-dirty` where its sources were changed; see build.rs.
const COMMIT: &str = env!("PROGRAM_COMMIT");

/// The lines in front of the checks'. `load` is that of the machine that the command runs on, by /proc/loadavg.
#[must_use]
pub fn head(host: &str, about: &AboutKvm, load: &str, now: SystemTime) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let date = chrono::DateTime::<chrono::Utc>::from(now).format("%F %R UTC");
    let mut lines = vec![
        ("unwindlab", format!("{version}, commit {COMMIT}")),
        ("date", date.to_string()),
        ("KVM host", printable(host)),
        ("CPU", printable(&about.cpu)),
        ("kernel", printable(&about.kernel)),
    ];
    let labels = std::iter::once("modules").chain(std::iter::repeat(""));
    lines.extend(labels.zip(about.modules.iter().map(|it| printable(it))));
    if about.modules.is_empty() {
        lines.push(("modules", "none that can be seen".to_owned()));
    }
    let mut load = load.split_whitespace().take(3);
    let [one, five, fifteen] = [load.next(), load.next(), load.next()].map(|it| it.unwrap_or("?"));
    lines.push(("load", format!("{one} {five} {fifteen}")));
    let lines = lines.iter().map(|(what, is)| format!("{what:<13} {is}\n"));
    lines.collect()
}

/// The line of a check.
#[must_use]
pub fn line(checked: &Checked) -> String {
    let Checked { name, millis, .. } = checked;
    let seconds = Duration::from_millis(*millis).as_secs_f64();
    match &checked.verdict {
        CheckVerdict::Ok => format!("ok            {name} ({seconds:.2} s)\n"),
        CheckVerdict::Failed(how) => {
            let how = printable(how);
            format!("FAILED        {name} ({seconds:.2} s): {how}\n")
        }
        CheckVerdict::NotAvailable(why) => {
            format!("not available {name}: {}\n", printable(why))
        }
    }
}

/// The last line.
#[must_use]
pub fn foot(tally: Tally, took: Duration) -> String {
    let Tally {
        ok,
        failed,
        not_available,
    } = tally;
    let all = ok + failed + not_available;
    let seconds = took.as_secs();
    format!(
        "{all} checks in {seconds} s: {ok} ok, {failed} failed, {not_available} not available\n"
    )
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn checked(verdict: CheckVerdict) -> String {
        line(&Checked {
            name: "a_check".to_owned(),
            verdict,
            millis: 1234,
        })
    }

    #[test]
    fn each_verdict_has_its_line() {
        assert_eq!(
            checked(CheckVerdict::Ok),
            "ok            a_check (1.23 s)\n"
        );
        assert_eq!(
            checked(CheckVerdict::Failed("seen 1,\nexpected 2".to_owned())),
            "FAILED        a_check (1.23 s): seen 1, expected 2\n"
        );
        assert_eq!(
            checked(CheckVerdict::NotAvailable("why".to_owned())),
            "not available a_check: why\n"
        );
    }

    #[test]
    fn the_head_says_where_and_when() {
        let about = AboutKvm {
            cpu: "GenuineIntel".to_owned(),
            kernel: "6.12".to_owned(),
            modules: vec!["kvm".to_owned(), "kvm_intel pml=Y".to_owned()],
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_795_770_060);
        let told = head("native", &about, "0.50 1.25 2.00 3/4 5", now);
        let lines: Vec<&str> = told.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "date          2026-11-27 09:01 UTC",
                "KVM host      native",
                "CPU           GenuineIntel",
                "kernel        6.12",
                "modules       kvm",
                "              kvm_intel pml=Y",
                "load          0.50 1.25 2.00",
            ]
        );
    }

    #[test]
    fn the_last_line_counts() {
        let tally = Tally {
            ok: 5,
            failed: 1,
            not_available: 2,
        };
        assert_eq!(
            foot(tally, Duration::from_millis(3999)),
            "8 checks in 3 s: 5 ok, 1 failed, 2 not available\n"
        );
    }
}
