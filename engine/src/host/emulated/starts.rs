//! How often an outer machine is started: what dies before a guest has executed anything says nothing of
//! the kernel under test, and is started again, a few times, counted and told. Behind that nothing is.

use crate::plan::{InfraError, Progress};

/// Most outer machines that are started for one host.
const MOST_STARTS: usize = 3;

/// Why an outer machine is not up.
#[derive(Debug)]
pub(super) enum StartError {
    /// It died or fell silent in its boot.
    Died(InfraError),
    /// Another one would end the same way, or is not wanted.
    Failed(InfraError),
}

/// Starts until it is up; with it, why each one before it died.
///
/// # Errors
/// [`InfraError`] of the last start.
pub(super) fn until_up<T>(
    progress: &dyn Progress,
    mut start: impl FnMut() -> Result<T, StartError>,
) -> Result<(T, Vec<String>), InfraError> {
    let mut deaths = Vec::new();
    loop {
        match start() {
            Ok(up) => return Ok((up, deaths)),
            Err(StartError::Failed(error)) => return Err(error),
            Err(StartError::Died(error)) => {
                deaths.push(error.reason.clone());
                if deaths.len() == MOST_STARTS {
                    let reason = format!("{} ({MOST_STARTS} starts died)", error.reason);
                    return Err(InfraError { reason, ..error });
                }
                progress.step("booting another outer machine: the one before died");
            }
        }
    }
}

/// What a host's description says of the machines that died.
pub(super) fn told(deaths: &[String]) -> String {
    match deaths {
        [] => String::new(),
        [only] => format!("; started again: {only}"),
        [first, ..] => format!("; started again {} times: {first}", deaths.len()),
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_guest_kernel::Silent;

    use super::*;

    fn death(reason: &str) -> InfraError {
        InfraError {
            reason: reason.to_owned(),
            console: String::new(),
        }
    }

    /// What comes of starts that end so, and how many were made.
    fn started(ends: Vec<Result<u8, StartError>>) -> (Result<(u8, Vec<String>), String>, usize) {
        let planned = ends.len();
        let mut ends = ends.into_iter();
        let up = until_up(&Silent, || ends.next().expect("no more starts"));
        (up.map_err(|error| error.reason), planned - ends.len())
    }

    #[test]
    fn a_machine_that_dies_in_its_boot_is_started_again_and_told() {
        let (up, starts) = started(vec![Err(StartError::Died(death("int3"))), Ok(7), Ok(8)]);
        let (host, deaths) = up.unwrap();
        assert_eq!((host, starts), (7, 2));
        assert_eq!(told(&deaths), "; started again: int3");
        assert_eq!(told(&[]), "");
    }

    #[test]
    fn three_that_die_are_no_host() {
        let ends = ["a", "b", "c", "d"].map(|it| Err(StartError::Died(death(it))));
        let (up, starts) = started(ends.into());
        assert_eq!(up.unwrap_err(), "c (3 starts died)");
        assert_eq!(starts, 3);
    }

    #[test]
    fn what_would_end_the_same_way_is_not_started_again() {
        let (up, starts) = started(vec![Err(StartError::Failed(death("no KVM"))), Ok(7)]);
        assert_eq!((up.unwrap_err().as_str(), starts), ("no KVM", 1));
    }
}
