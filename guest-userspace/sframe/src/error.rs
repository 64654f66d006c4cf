/// A section cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// More functions, rows or bytes than a field of the format can count.
    #[error("{what} do not fit their field of {bits} bits")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The field's width.
        bits: u8,
    },
    /// Version 2 has 32 bits for it.
    #[error("the function at {start:#x} is too far from the section at {section:#x} for version 2")]
    TooFar {
        /// Of the function.
        start: u64,
        /// Of the section.
        section: u64,
    },
    /// Only version 3 has flexible functions and signal frames.
    #[error("version 2 has no {0}")]
    NotInVersion2(&'static str),
    /// A function is flexible or not.
    #[error("the function at {start:#x} has plain rows and flexible ones")]
    Mixed {
        /// Of the function.
        start: u64,
    },
}
