//! Which of the tries of one point stands.

use std::mem::take;

use unwindlab_oracle::trace::recording::TrialEnd;

/// The tries of one point.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// How many guests died without a word, which the KVM host may have done.
    silent: u32,
}

impl Tries {
    /// Whether a try stands that ended so. A kernel that hangs or panics at a point does so each time: only the last try
    /// stands then, and the report names the others. A failure of the KVM host never stands: a point at which it failed
    /// each time was not tried. A guest that died without a word did so by its kernel's doing if another one did before.
    pub(super) fn stands(&mut self, end: &mut TrialEnd, is_last: bool) -> bool {
        if let TrialEnd::Silent { line } = end {
            self.silent += 1;
            if is_last && self.silent > 1 {
                *end = TrialEnd::Panic { line: take(line) };
            }
        }
        match end {
            TrialEnd::Infra { .. } | TrialEnd::Silent { .. } => false,
            TrialEnd::Hang { .. } | TrialEnd::Panic { .. } | TrialEnd::Misbehaved { .. } => is_last,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> TrialEnd {
        TrialEnd::Silent {
            line: "triple fault".to_owned(),
        }
    }

    fn infra() -> TrialEnd {
        TrialEnd::Infra {
            reason: "lost".to_owned(),
        }
    }

    /// The end of the last of these tries, and whether it stands.
    fn last(ends: impl IntoIterator<Item = TrialEnd>) -> (TrialEnd, bool) {
        let mut ends: Vec<TrialEnd> = ends.into_iter().collect();
        let mut last = ends.pop().unwrap();
        let mut tries = Tries::default();
        for mut end in ends {
            assert!(!tries.stands(&mut end, false), "{end:?}");
        }
        let stands = tries.stands(&mut last, true);
        (last, stands)
    }

    #[test]
    fn one_silent_death_is_not_the_kernels() {
        assert_eq!(last([silent()]), (silent(), false));
        assert_eq!(last([infra(), silent()]), (silent(), false));
        let hang = TrialEnd::Hang { places: Vec::new() };
        assert_eq!(last([hang, silent()]), (silent(), false));
    }

    #[test]
    fn one_that_comes_again_is() {
        let panic = TrialEnd::Panic {
            line: "triple fault".to_owned(),
        };
        assert_eq!(last([silent(), silent()]), (panic.clone(), true));
        assert_eq!(last([silent(), infra(), silent()]), (panic, true));
    }

    #[test]
    fn a_failure_of_the_host_never_stands() {
        assert_eq!(last([silent(), silent(), infra()]), (infra(), false));
        assert_eq!(last([TrialEnd::Completed]), (TrialEnd::Completed, true));
    }
}
