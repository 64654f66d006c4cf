//! The name of one trial of an exploration.

use std::fmt;

/// Names the choices of one trial of an exploration: `SEED:TRIAL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The exploration's seed.
    pub seed: u64,
    /// The trial's number, from 1.
    pub trial: u32,
}

/// The text is not a [`Token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected SEED:TRIAL, as a failure names it, such as 1:37")]
pub struct TokenError;

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seed, self.trial)
    }
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(':');
        let token = parts.and_then(|(seed, trial)| {
            let (seed, trial) = (seed.parse().ok()?, trial.parse().ok()?);
            (trial > 0).then_some(Self { seed, trial })
        });
        token.ok_or(TokenError)
    }
}
