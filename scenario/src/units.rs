//! How scenarios write quantities: `500 us`, `256 MiB`, `20`, `1000 or more`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A type with a one-line notation.
pub(super) trait Notation: FromStr<Err = NotationError> {
    /// What to write, with an example; completes "expected ...".
    const EXPECTED: &'static str;
    /// The type's name in the JSON schema.
    const NAME: &'static str;
    /// The notation as a regular expression, for editors.
    const PATTERN: &'static str;
    /// Whether YAML reads some of it as a number.
    const MAY_BE_NUMBER: bool = false;
}

/// The text does not follow the notation. The caller knows which notation it expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text does not follow the notation")]
pub struct NotationError;

/// Reads a [`Notation`] from a YAML scalar, a string or a number.
pub(super) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Notation,
{
    struct Scalar<T>(PhantomData<T>);

    impl<T: Notation> Visitor<'_> for Scalar<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::EXPECTED)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse()
                .map_err(|NotationError| E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    deserializer.deserialize_str(Scalar(PhantomData))
}

/// The schema of a [`Notation`].
pub(super) fn schema<T: Notation>() -> Schema {
    let types: &[&str] = if T::MAY_BE_NUMBER {
        &["string", "integer"]
    } else {
        &["string"]
    };
    json_schema!({
        "type": types,
        "description": T::EXPECTED,
        "pattern": T::PATTERN,
    })
}

macro_rules! notation {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::units::deserialize(deserializer)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                <$type as $crate::units::Notation>::NAME.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $crate::units::schema::<$type>()
            }
        }
    };
}
pub(super) use notation;

/// A time, in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(Duration);

impl Time {
    /// From microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(Duration::from_micros(micros))
    }

    /// In microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }

    /// In milliseconds, rounded up, so that a limit is never shorter than written.
    #[must_use]
    pub fn millis_ceil(self) -> u64 {
        self.micros().div_ceil(1000)
    }
}

impl Notation for Time {
    const EXPECTED: &'static str = "a time such as `500 us`, `20 ms` or `3 s`";
    const NAME: &'static str = "Time";
    const PATTERN: &'static str = "^[0-9]+ ?(us|ms|s)$";
}

impl FromStr for Time {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let (count, unit) = number_and_word(text)?;
        let micros = match unit {
            "us" => 1,
            "ms" => 1000,
            "s" => 1_000_000,
            _ => return Err(NotationError),
        };
        Ok(Self::from_micros(
            count.checked_mul(micros).ok_or(NotationError)?,
        ))
    }
}
notation!(Time);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.micros() {
            us if us % 1_000_000 == 0 => write!(f, "{} s", us / 1_000_000),
            us if us % 1000 == 0 => write!(f, "{} ms", us / 1000),
            us => write!(f, "{us} us"),
        }
    }
}

/// An amount of memory, in whole MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory {
    /// MiB.
    pub mib: u32,
}

impl Notation for Memory {
    const EXPECTED: &'static str = "an amount of memory such as `256 MiB` or `1 GiB`";
    const NAME: &'static str = "Memory";
    const PATTERN: &'static str = "^[0-9]+ ?(MiB|GiB)$";
}

impl FromStr for Memory {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let (count, unit) = number_and_word(text)?;
        let mib = match unit {
            "MiB" => Some(count),
            "GiB" => count.checked_mul(1024),
            _ => None,
        };
        let mib = mib
            .and_then(|mib| u32::try_from(mib).ok())
            .ok_or(NotationError)?;
        Ok(Self { mib })
    }
}
notation!(Memory);

/// An expected number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Exactly this number.
    Exactly(u64),
    /// This number or more.
    AtLeast(u64),
    /// This number or less.
    AtMost(u64),
}

impl Count {
    /// Whether a number meets the expectation.
    #[must_use]
    pub const fn admits(self, number: u64) -> bool {
        match self {
            Self::Exactly(n) => number == n,
            Self::AtLeast(n) => number >= n,
            Self::AtMost(n) => number <= n,
        }
    }
}

impl Notation for Count {
    const EXPECTED: &'static str = "a number such as `20`, `20 or more` or `20 or less`";
    const NAME: &'static str = "Count";
    const PATTERN: &'static str = "^[0-9]+( or (more|less))?$";
    const MAY_BE_NUMBER: bool = true;
}

impl FromStr for Count {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        match number_and_word(text)? {
            (n, "") => Ok(Self::Exactly(n)),
            (n, "or more") => Ok(Self::AtLeast(n)),
            (n, "or less") => Ok(Self::AtMost(n)),
            _ => Err(NotationError),
        }
    }
}
notation!(Count);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(n) => write!(f, "{n}"),
            Self::AtLeast(n) => write!(f, "{n} or more"),
            Self::AtMost(n) => write!(f, "{n} or less"),
        }
    }
}

/// A whole number, decimal or hexadecimal: `65535` or `0xffff`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number(pub u64);

impl Notation for Number {
    const EXPECTED: &'static str = "a number such as `65535` or `0xffff`";
    const NAME: &'static str = "Number";
    const PATTERN: &'static str = "^([0-9]+|0x[0-9a-fA-F]+)$";
    const MAY_BE_NUMBER: bool = true;
}

impl FromStr for Number {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
        let right = digits.chars().all(|c| c.is_digit(radix));
        let number = u64::from_str_radix(digits, radix).map_err(|_| NotationError)?;
        right.then_some(Self(number)).ok_or(NotationError)
    }
}
notation!(Number);

/// Splits `500 us` into 500 and `us`; the space may be missing.
fn number_and_word(text: &str) -> Result<(u64, &str), NotationError> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, word) = text.split_at(end);
    Ok((digits.parse().map_err(|_| NotationError)?, word.trim()))
}
