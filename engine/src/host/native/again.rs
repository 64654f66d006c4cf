//! Guests that die without a word, or as none does by itself. On an emulated KVM host it may be the host's doing, and is tried again, once, on a
//! fresh machine: what comes again is the kernel's.

use unwindlab_oracle::trace::recording::{Recording, TrialEnd};

/// Words with which a kernel writes each line to the serial port from the first one on, and names each initcall before
/// it calls it (Documentation/admin-guide/kernel-parameters.txt).
const TALKATIVE: &str = "earlyprintk=ttyS0 initcall_debug ignore_loglevel";
/// Most characters of a kernel's last line that are shown.
const LAST_LINE: usize = 160;

/// What came of a trial that was made again because its machine died without a word, or was lost.
pub(super) fn settle(first: Recording, again: Recording) -> Recording {
    let TrialEnd::Silent { line } = &first.end else {
        return first;
    };
    let line = line.clone();
    match &again.end {
        TrialEnd::Silent { line: second } => Recording {
            end: TrialEnd::Panic {
                line: match *second == line {
                    true => format!("{line}; as on another machine before"),
                    false => format!("{second}; on another machine before: {line}"),
                },
            },
            ..again
        },
        // Nothing of the kernel under test was at stake yet.
        _ if first.release.is_empty() => Recording {
            restarted: Some(line),
            ..again
        },
        // What was recorded behind that point counts, whatever comes of it another time.
        end => {
            let other = format!("{line}; on another machine it does not ({})", word(end));
            Recording {
                end: TrialEnd::Infra {
                    reason: format!("the emulated KVM host's doing, most likely: {other}"),
                },
                ..first
            }
        }
    }
}

/// The command line's words of a kernel that tells how far it comes, where `again` died in its boot: its console is not set up before
/// most of its initcalls, and what the vCPU had in its registers is gone behind a shutdown (`shutdown_interception`,
/// arch/x86/kvm/svm/svm.c).
pub(super) fn talkative(cmdline: &str, again: &Recording) -> Option<String> {
    let died = matches!(again.end, TrialEnd::Silent { .. }) && again.release.is_empty();
    died.then(|| format!("{cmdline} {TALKATIVE}"))
}

/// Adds the last line that a talkative kernel wrote to the end of one that died in its boot twice.
pub(super) fn with_place(settled: Recording, talkative: Recording) -> Recording {
    let TrialEnd::Panic { line } = &settled.end else {
        return settled;
    };
    let console = talkative.console;
    let last = console.lines().rev().find(|line| !line.trim().is_empty());
    let said = match &talkative.end {
        TrialEnd::Silent { .. } => last.map(|last| ("its last line", last.trim())),
        TrialEnd::Panic { line } => Some(("it says", line.as_str())),
        _ => None,
    };
    let Some((what, text)) = said else {
        return settled;
    };
    let text: String = text.chars().take(LAST_LINE).collect();
    let line = format!("{line}; {what} with `{TALKATIVE}`: {text}");
    Recording {
        end: TrialEnd::Panic { line },
        console,
        ..settled
    }
}

const fn word(end: &TrialEnd) -> &'static str {
    match end {
        TrialEnd::Completed => "the trial is completed",
        _ => "the trial ends otherwise",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(release: &str, end: TrialEnd) -> Recording {
        Recording {
            release: release.to_owned(),
            end,
            ..Recording::default()
        }
    }

    fn silent() -> TrialEnd {
        TrialEnd::Silent {
            line: "triple fault".to_owned(),
        }
    }

    #[test]
    fn what_comes_again_is_the_kernels() {
        for release in ["", "7.3"] {
            let settled = settle(ended(release, silent()), ended(release, silent()));
            let TrialEnd::Panic { line } = settled.end else {
                panic!("{:?}", settled.end);
            };
            assert_eq!(line, "triple fault; as on another machine before");
        }
    }

    #[test]
    fn what_comes_in_another_way_is_told_with_both() {
        let int3 = TrialEnd::Silent {
            line: "Oops: int3: 0000 [#1]".to_owned(),
        };
        let settled = settle(ended("7.3", int3), ended("7.3", silent()));
        let TrialEnd::Panic { line } = settled.end else {
            panic!("{:?}", settled.end);
        };
        let both = "triple fault; on another machine before: Oops: int3: 0000 [#1]";
        assert_eq!(line, both);
    }

    #[test]
    fn a_boot_that_succeeds_the_second_time_is_said() {
        let settled = settle(ended("", silent()), ended("7.3", TrialEnd::Completed));
        assert_eq!(settled.end, TrialEnd::Completed);
        assert_eq!(settled.restarted.as_deref(), Some("triple fault"));
        let dies = TrialEnd::Hang { places: Vec::new() };
        assert_eq!(
            settle(ended("", silent()), ended("", dies.clone())).end,
            dies
        );
    }

    #[test]
    fn a_trial_is_not_repeated_until_it_passes() {
        let settled = settle(ended("7.3", silent()), ended("7.3", TrialEnd::Completed));
        assert!(matches!(settled.end, TrialEnd::Infra { .. }));
        assert_eq!(settled.restarted, None);
    }

    #[test]
    fn a_boot_that_dies_twice_is_told_by_its_last_line() {
        let twice = || settle(ended("", silent()), ended("", silent()));
        let told = |end: TrialEnd, console: &str| {
            let talkative = Recording {
                console: console.to_owned(),
                ..ended("", end)
            };
            let Recording { end, console, .. } = with_place(twice(), talkative);
            let TrialEnd::Panic { line } = end else {
                panic!("{end:?}");
            };
            (line, console)
        };
        let (line, console) = told(silent(), "a\ncalling  x+0x0/0x20 @ 1\r\n\n");
        assert!(line.ends_with(": calling  x+0x0/0x20 @ 1"), "{line}");
        assert!(console.starts_with("a\n"));
        let (line, _) = told(silent(), &"x".repeat(100_000));
        assert!(line.len() < 400, "{}", line.len());
        // What could not be said without an early console.
        let panics = TrialEnd::Panic {
            line: "kernel BUG at lib/list_debug.c:29!".to_owned(),
        };
        let (line, console) = told(panics, "a\nb\n");
        let said = format!("it says with `{TALKATIVE}`: kernel BUG at lib/list_debug.c:29!");
        assert!(line.ends_with(&said), "{line}");
        assert_eq!(console, "a\nb\n");
        // Nothing is said of one that does not die there, or is silent still.
        for (end, console) in [(TrialEnd::Completed, "a"), (silent(), "")] {
            let (line, console) = told(end, console);
            assert!(line.ends_with("as on another machine before"), "{line}");
            assert_eq!(console, "");
        }
    }

    #[test]
    fn only_a_boot_is_made_to_talk() {
        assert_eq!(talkative("a", &ended("7.3", silent())), None);
        assert_eq!(talkative("a", &ended("", TrialEnd::Completed)), None);
        let talks = talkative("a", &ended("", silent()));
        assert_eq!(talks, Some(format!("a {TALKATIVE}")));
    }
}
