//! What a check saw and did not expect.

use std::any::Any;
use std::error::Error;
use std::fmt::{self, Debug};
use std::panic::Location;
use std::time::Duration;

/// What came of a check's body.
pub type Outcome = Result<(), Failure>;

/// Why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was not what was expected, at this place of the check.
    Unexpected {
        /// File and line.
        at: String,
        /// What was seen.
        seen: String,
        /// What was expected.
        expected: String,
    },
    /// A call of the VMM failed, at this place of the check.
    Refused {
        /// File and line.
        at: String,
        /// Its error.
        error: String,
    },
    /// It panicked.
    Panicked(String),
    /// It was not over after this time.
    Overdue(Duration),
    /// It found out that it cannot say anything here.
    NotAvailable(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unexpected { at, seen, expected } => {
                write!(f, "seen {seen}, expected {expected} ({at})")
            }
            Self::Refused { at, error } => {
                write!(f, "seen the error `{error}`, expected none ({at})")
            }
            Self::Panicked(message) => {
                write!(f, "seen a panic of the VMM, expected none: {message}")
            }
            Self::Overdue(limit) => {
                let limit = limit.as_secs();
                write!(f, "seen no end of the check within {limit} s, expected one")
            }
            Self::NotAvailable(why) => write!(f, "not available: {why}"),
        }
    }
}

impl Failure {
    /// Something else than what was expected, at the caller.
    #[track_caller]
    pub(super) fn unexpected(seen: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Unexpected {
            at: place(Location::caller()),
            seen: seen.into(),
            expected: expected.into(),
        }
    }

    pub(super) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }
}

/// Any error of a call with `?`. (So this type cannot be an error itself.)
impl<E: Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::Refused {
            at: place(Location::caller()),
            error: error.to_string(),
        }
    }
}

fn place(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

/// A value that must be there.
#[track_caller]
pub(super) fn some<T>(value: Option<T>, what: &str) -> Result<T, Failure> {
    value.ok_or_else(|| Failure::unexpected("none", what))
}

/// The error of what must be refused.
#[track_caller]
pub(super) fn refusal<T: Debug, E>(result: Result<T, E>) -> Result<E, Failure> {
    match result {
        Ok(done) => Err(Failure::unexpected(format!("{done:?}"), "a refusal")),
        Err(error) => Ok(error),
    }
}

/// Ends the check unless the first value, which was seen, is the second, which is expected.
macro_rules! same {
    ($seen:expr, $expected:expr $(,)?) => {
        match (&$seen, &$expected) {
            (seen, expected) if *seen == *expected => {}
            (seen, expected) => {
                let (seen, expected) = (format!("{seen:x?}"), format!("{expected:x?}"));
                return Err($crate::checks::Failure::unexpected(seen, expected));
            }
        }
    };
    ($seen:expr, $expected:expr, $($why:tt)+) => {
        match (&$seen, &$expected) {
            (seen, expected) if *seen == *expected => {}
            (seen, expected) => {
                let why = format!($($why)+);
                let (seen, expected) = (format!("{seen:x?}"), format!("{expected:x?} ({why})"));
                return Err($crate::checks::Failure::unexpected(seen, expected));
            }
        }
    };
}
pub(super) use same;

/// Ends the check unless this holds.
macro_rules! holds {
    ($what:expr $(,)?) => {
        if !$what {
            return Err($crate::checks::Failure::unexpected("the opposite", stringify!($what)));
        }
    };
    ($what:expr, $($why:tt)+) => {
        if !$what {
            let (seen, what) = (format!($($why)+), stringify!($what));
            return Err($crate::checks::Failure::unexpected(seen, what));
        }
    };
}
pub(super) use holds;
