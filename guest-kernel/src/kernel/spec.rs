//! How the user names a kernel.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::debian::version::{dotted, parse_numbers};

/// Which kernel to run: `stock`, `stock:7.0` or `path:FILE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KernelSpec {
    /// The newest stock kernel whose version begins with these numbers.
    Stock {
        /// `[7, 0]` for `stock:7.0`; [`KernelSpec::NEWEST`] for `stock`.
        numbers: Vec<u64>,
    },
    /// A vmlinux or a bzImage.
    Path(PathBuf),
}

/// Not a kernel specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kernel {0:?}: give stock, stock:VERSION (such as stock:7.0) or path:FILE")]
pub struct SpecError(String);

impl KernelSpec {
    /// What `stock` stands for: 7.x, the first series with deferred unwinding for perf.
    pub const NEWEST: [u64; 1] = [7];

    /// `stock`.
    #[must_use]
    pub fn stock() -> Self {
        Self::Stock {
            numbers: Self::NEWEST.to_vec(),
        }
    }
}

impl FromStr for KernelSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let unknown = || SpecError(text.to_owned());
        match text.split_once(':') {
            None if text == "stock" => Ok(Self::stock()),
            Some(("stock", version)) => parse_numbers(version)
                .map(|numbers| Self::Stock { numbers })
                .ok_or_else(unknown),
            Some(("path", path)) if !path.is_empty() => Ok(Self::Path(PathBuf::from(path))),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stock { numbers } if *numbers == Self::NEWEST => f.write_str("stock"),
            Self::Stock { numbers } => write!(f, "stock:{}", dotted(numbers)),
            Self::Path(path) => write!(f, "path:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_read_and_print() {
        for text in [
            "stock",
            "stock:7.0",
            "stock:6.12",
            "stock:7.2.13",
            "path:/a/b:c",
        ] {
            assert_eq!(text.parse::<KernelSpec>().unwrap().to_string(), text);
        }
        assert_eq!(
            "stock:7".parse::<KernelSpec>().unwrap(),
            KernelSpec::stock()
        );
        for text in [
            "",
            "stok",
            "stock:",
            "stock:7.",
            "stock:+7",
            "stock:7.x",
            "path:",
            "/a",
        ] {
            let error = text.parse::<KernelSpec>().unwrap_err().to_string();
            assert!(error.contains("stock:VERSION"), "{error}");
        }
    }
}
