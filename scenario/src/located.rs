//! Values that know where the file contains them, so that an error found long after parsing can
//! still name its line.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// A place in a scenario file, from line 1 and column 1. Line 0 and column 0 belong to defaults,
/// which the file does not contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl From<serde_saphyr::Location> for Location {
    fn from(location: serde_saphyr::Location) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
        }
    }
}

/// A value and where the file contains it.
///
/// Must not be used below `flatten`, `untagged` or internally tagged types: serde buffers those,
/// and the location is lost.
#[derive(Debug, Clone, Default)]
pub struct At<T> {
    value: T,
    location: Location,
}

impl<T> At<T> {
    /// A default, which no file contains.
    #[must_use]
    pub const fn unwritten(value: T) -> Self {
        Self {
            value,
            location: Location { line: 0, column: 0 },
        }
    }

    /// Where the file contains the value.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.location
    }
}

impl<T> Deref for At<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        Ok(Self {
            value: spanned.value,
            location: spanned.referenced.into(),
        })
    }
}

/// The schema of the value itself, without a location.
impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
