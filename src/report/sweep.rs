//! A sweep as text: the distinct failures, the code that was tried, and the cost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::names::Names;
use crate::judge::sweep::{Failure, SweepSymptom, Unsteady, Verdicts};
use unwindlab_engine::plan::sweep::{Effort, Point, TICKS_LATE};
use unwindlab_engine::text::printable;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Violations of a failure that are shown.
const MAX_MESSAGES: usize = 64;

/// Lines of the console that are shown of a trial that was made once more.
const CONSOLE_LINES: usize = 120;

/// A sweep to report.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Summary<'a> {
    /// The verdicts of all trials.
    pub verdicts: &'a Verdicts<'a>,
    /// How many boundaries of the path were to be tried.
    pub chosen: usize,
    /// The cost; `None` if the sweep did not come to its end.
    pub effort: Option<&'a Effort>,
    /// From the path's recording to the last verdict; zero if that is not known.
    pub elapsed: Duration,
    /// Why it ended before all points were tried, if it did.
    pub cut: Option<Cut>,
}

/// Why a sweep ended before all its points were tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The budget was used up.
    Budget,
    /// The user stopped it.
    Interrupt,
    /// It could not go on.
    Failure,
}

/// The whole report, some lines.
#[must_use]
pub fn report(summary: &Summary<'_>, names: Names<'_>) -> String {
    let verdicts = summary.verdicts;
    let mut out = String::new();
    for (symptom, failure) in &verdicts.failures {
        let _ = write!(out, "{}", block(symptom, failure, names));
    }
    let _ = write!(out, "{}", coverage(verdicts, names));
    let _ = write!(out, "{}", last_lines(summary, names));
    out
}

fn block(symptom: &SweepSymptom, failure: &Failure, names: Names<'_>) -> String {
    let mut out = String::new();
    let word = if symptom.is_known() {
        "expected-failure"
    } else {
        "FAIL"
    };
    let first = failure.points.first();
    let first = first.map(|it| format!(", first {} (point {it})", place(it, names)));
    let _ = writeln!(
        out,
        "{word}  {}  at {} of the points{}",
        what(symptom),
        failure.points.len(),
        first.unwrap_or_default(),
    );
    for message in failure.messages.iter().take(MAX_MESSAGES) {
        let _ = writeln!(out, "  {}", printable(message));
    }
    let places: BTreeSet<String> = failure
        .points
        .iter()
        .map(|point| place(point, names))
        .collect();
    let shown: Vec<&str> = places.iter().map(String::as_str).take(12).collect();
    let more = places.len().saturating_sub(shown.len());
    let _ = write!(out, "  at {}", shown.join(" "));
    let _ = match more {
        0 => writeln!(out),
        more => writeln!(out, " and {more} other places"),
    };
    out
}

/// `f+0x4`, or `f+0x4..g+0x8` for two NMIs.
fn place(point: &Point, names: Names<'_>) -> String {
    let first = names.name(point.at.rip);
    match point.then {
        None => first,
        Some(then) => format!("{first}..{}", names.name(then.at.rip)),
    }
}

/// `guest-panic`, or `C4 (F001) M1`.
#[must_use]
pub fn what(symptom: &SweepSymptom) -> String {
    // They may be of the file of another sweep.
    let fell = symptom.fell.iter().map(|(id, finding)| match finding {
        Some(finding) => printable(&format!("{id} ({finding})")),
        None => printable(id),
    });
    let died = symptom.died.map(str::to_owned);
    died.into_iter().chain(fell).collect::<Vec<_>>().join(" ")
}

/// A table of the functions on the path: instructions, how many of them were tried, executions.
fn coverage(verdicts: &Verdicts<'_>, names: Names<'_>) -> String {
    let mut functions: BTreeMap<String, (BTreeSet<u64>, BTreeSet<u64>, usize)> = BTreeMap::new();
    let numbers = verdicts.covered();
    for (point, step) in (0_u32..).zip(verdicts.path()) {
        if step.user {
            continue;
        }
        let name = names
            .kernel
            .resolve(step.rip)
            .map_or_else(|| "?".to_owned(), |(name, _)| name);
        let (on_path, tried, times) = functions.entry(name).or_default();
        on_path.insert(step.rip);
        *times += 1;
        if numbers.contains(&point) {
            tried.insert(step.rip);
        }
    }
    let mut rows: Vec<_> = functions.into_iter().collect();
    rows.sort_by_key(|(_, (_, _, times))| std::cmp::Reverse(*times));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = format!(
        "\n{:<width$}  instructions  tried  executed\n",
        "function on the path"
    );
    for (name, (on_path, tried, times)) in rows {
        let _ = writeln!(
            out,
            "{:<width$}  {:>12}  {:>5}  {times:>8}",
            printable(&name),
            on_path.len(),
            tried.len(),
        );
    }
    out
}

fn last_lines(summary: &Summary<'_>, names: Names<'_>) -> String {
    let verdicts = summary.verdicts;
    let tried = verdicts.tried.len();
    let seconds = summary.elapsed.as_secs_f64();
    let boundaries = verdicts.path().len();
    let of = match &verdicts.pairs {
        // Earlier sweeps recorded other paths.
        None if tried > summary.chosen => format!(
            " points, {} of the path as it was recorded last,",
            summary.chosen
        ),
        None if summary.chosen == boundaries => format!(" of {boundaries} points"),
        None => format!(" of {} points ({boundaries} boundaries)", summary.chosen),
        Some(pairs) => match pairs.trials() {
            Some(all) if pairs.known == pairs.stand_for_all => format!(" of {all} pairs"),
            Some(all) => format!(" of about {all} pairs"),
            None => " of an unknown number of pairs".to_owned(),
        },
    };
    let mut out = format!(
        "\n{tried}{of} tried: {} pass, {} distinct failures{}{}\n",
        verdicts.passed,
        verdicts.failures.len(),
        match summary.elapsed {
            Duration::ZERO => String::new(),
            _ => {
                let made = tried.saturating_sub(verdicts.before) as f64;
                let rate = made / seconds.max(0.001);
                format!("; {seconds:.1} s, {rate:.0} trials a second")
            }
        },
        match summary.cut {
            Some(Cut::Budget) => "; budget used up",
            Some(Cut::Interrupt) => "; interrupted",
            Some(Cut::Failure) => "; broken off",
            None => "",
        },
    );
    if verdicts.before > 0 {
        let _ = writeln!(out, "{} of them in earlier sweeps", verdicts.before);
    }
    let stood_for = verdicts.covered().len() - verdicts.numbers().len();
    if stood_for > 0 {
        let _ = writeln!(
            out,
            "{stood_for} more boundaries have the next one tried in their place, since what is executed between \
             them reads and writes registers only (--all tries them, too)",
        );
    }
    if let Some(pairs) = &verdicts.pairs {
        let _ = writeln!(
            out,
            "{} boundaries for the first NMI, of which {} leave different machines behind and represent \
             the others: {} pairs so far",
            pairs.firsts, pairs.stand_for_all, pairs.stood_for,
        );
    }
    out.push_str(&not_steady(verdicts, names));
    let exercised: Vec<&str> = verdicts.exercised.keys().copied().collect();
    let _ = writeln!(out, "exercised: {}", exercised.join(" "));
    if !verdicts.reads_messages() {
        out.push_str(
            "W0 was not checked: the kernel's symbols do not tell where its messages are (prb)\n",
        );
    }
    if let Some(effort) = summary.effort {
        out.push_str(&cost(effort));
    }
    out
}

/// What the trials cost on the KVM host.
fn cost(effort: &Effort) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} checkpoints on the path, {} us each, median; {} ways led elsewhere than the path",
        effort.checkpoints_us.len(),
        quantile(&effort.checkpoints_us, 0.5),
        effort.strayed,
    );
    if effort.left > 0 {
        let _ = writeln!(
            out,
            "recorded {} times: the path led through another task",
            effort.left + 1
        );
    }
    let _ = writeln!(
        out,
        "restore: {} us median, {} us at the 99th percentile; {} of {} pages examined were copied, \
         median",
        quantile(&effort.restores_us, 0.5),
        quantile(&effort.restores_us, 0.99),
        quantile(&effort.copied, 0.5),
        quantile(&effort.looked_at, 0.5),
    );
    let _ = writeln!(
        out,
        "medians of a trial: {} us of single steps, {} us from the NMI to the end ({} us at the 99th \
         percentile), {} us of reading",
        quantile(&effort.steps_us, 0.5),
        quantile(&effort.runs_us, 0.5),
        quantile(&effort.runs_us, 0.99),
        quantile(&effort.tells_us, 0.5),
    );
    let late = TICKS_LATE.as_micros();
    let ticked = { effort.runs_us.iter() }
        .filter(|run| u128::from(**run) > late)
        .count();
    if ticked > 0 {
        let _ = writeln!(
            out,
            "{ticked} trials took more than {} ms: a tick in them can have hidden that a self-IPI is missing",
            TICKS_LATE.as_millis(),
        );
    }
    out
}

/// Points that were not tried, and trials that were made once more.
fn not_steady(verdicts: &Verdicts<'_>, names: Names<'_>) -> String {
    let mut out = String::new();
    if !verdicts.missed.is_empty() {
        let missed = verdicts.missed.iter();
        let missed = missed.map(|point| format!("{point} ({})", names.name(point.at.rip)));
        let _ = writeln!(
            out,
            "{} points were not tried, because each attempt took another path: {}",
            verdicts.missed.len(),
            missed.collect::<Vec<_>>().join(", "),
        );
    }
    for (point, why) in &verdicts.unjudged {
        let _ = writeln!(out, "the trial at point {point} is not decided: {why}");
    }
    for (point, reason) in &verdicts.failed {
        let _ = writeln!(
            out,
            "the trial at point {point} was repeated: {}",
            printable(reason)
        );
    }
    for Unsteady {
        point,
        end,
        console,
    } in &verdicts.unsteady
    {
        let how = match end {
            TrialEnd::Hang { places } => {
                let places = places.iter();
                let at = places.map(|it| format!("vCPU {} at {}", it.vcpu, names.name(it.rip)));
                format!("hung ({})", at.collect::<Vec<_>>().join(", "))
            }
            TrialEnd::Panic { line } => format!("panicked ({})", printable(line)),
            TrialEnd::Misbehaved { what } => format!("misbehaved ({})", printable(what)),
            other => format!("{other:?}"),
        };
        let _ = writeln!(
            out,
            "UNSTEADY: the trial at point {point} ({}) {how} and was repeated; if it failed again, it is \
             listed above",
            names.name(point.at.rip),
        );
        for line in console.lines().take(CONSOLE_LINES) {
            let _ = writeln!(out, "  {}", printable(line));
        }
    }
    out
}

/// The value below which that share of the values lies.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an index near the right one is good enough"
)]
fn quantile(values: &[u32], share: f64) -> u32 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).or(sorted.last()).copied().unwrap_or(0)
}
