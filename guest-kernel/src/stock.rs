//! Which kernel is meant, and which package holds it.
//!
//! # The rule for `stock`
//! Of all packages of all suites that hold a cloud kernel for amd64, the one with the newest
//! Debian version among those whose numbers begin with what is asked for: `7` for `stock`,
//! `7.0` for `stock:7.0`. Release candidates take part (`7.3~rc7` is newer than 7.2.13 and older
//! than 7.3), so do packages that wait for their Secure Boot signature (`-unsigned`): nothing
//! checks it here, and the code is the same. At the same version the signed one is taken.
//!
//! Superseded versions leave the archive, which is why no version is written down anywhere.
//!
//! # How Debian splits a kernel
//! - `linux-image-REL-cloud-amd64`, up to 6.18: everything in one;
//! - `linux-binary-REL-cloud-amd64`, from 6.19 on: the kernel alone; `linux-base-REL` has the
//!   configuration and `linux-modules-REL` the modules. `linux-image-REL` is an empty package
//!   then that depends on these.
//!
//! The kernel is in `boot/vmlinuz-REL` or in `usr/lib/modules/REL/vmlinuz`, or there with
//! `.unsigned` behind.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::apt::Offer;
use crate::version::{Version, dotted, parse_numbers};

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

/// The release that a package holds the kernel of, when it is one of those that may hold one,
/// and how willingly it is taken of several with the same version: less is better.
fn release_and_rank(package: &str) -> Option<(&str, u8)> {
    let (release, rank) = if let Some(rest) = package.strip_prefix("linux-binary-unsigned-") {
        (rest, 1)
    } else if let Some(rest) = package.strip_prefix("linux-binary-") {
        (rest, 0)
    } else {
        let rest = package.strip_prefix("linux-image-")?;
        rest.strip_suffix("-unsigned")
            .map_or((rest, 2), |rest| (rest, 3))
    };
    let is_kernel =
        release.ends_with("-cloud-amd64") && release.starts_with(|c: char| c.is_ascii_digit());
    is_kernel.then_some((release, rank))
}

/// The release whose kernel a package of this name may hold.
pub(crate) fn release(package: &str) -> Option<&str> {
    release_and_rank(package).map(|(release, _)| release)
}

/// Whether a package of this name may hold a cloud kernel, or go with one that does.
pub(crate) fn is_of_interest(package: &str) -> bool {
    let companion = [BASE, MODULES]
        .iter()
        .any(|prefix| package.starts_with(prefix) && package.ends_with("-cloud-amd64"));
    companion || release(package).is_some()
}

/// Prefix of the package with the configuration, where that is apart.
pub(crate) const BASE: &str = "linux-base-";
/// Prefix of the package with the modules, where that is apart.
pub(crate) const MODULES: &str = "linux-modules-";

/// The package that goes with a kernel's and has this prefix.
pub(crate) fn companion<'a>(
    offers: &'a [Offer],
    kernel: &Offer,
    prefix: &str,
) -> Option<&'a Offer> {
    offers.iter().find(|offer| {
        offer.version == kernel.version
            && offer.suite == kernel.suite
            && offer.name.strip_prefix(prefix) == release(&kernel.name)
    })
}

/// Takes the newest of the offers whose version begins with `numbers`, by the rule above.
pub(crate) fn choose<'a>(offers: &'a [Offer], numbers: &[u64]) -> Option<&'a Offer> {
    offers
        .iter()
        .filter(|offer| offer.version.numbers().starts_with(numbers))
        .filter_map(|offer| Some((release_and_rank(&offer.name)?.1, offer)))
        .max_by(|(rank, offer), (other_rank, other)| {
            offer
                .version
                .cmp(&other.version)
                .then_with(|| other_rank.cmp(rank))
        })
        .map(|(_, offer)| offer)
}

/// What is on offer, for a message: each series once, newest first.
pub(crate) fn series(offers: &[Offer]) -> String {
    let mut versions: Vec<&Version> = offers
        .iter()
        .filter(|offer| release(&offer.name).is_some())
        .map(|offer| &offer.version)
        .collect();
    versions.sort();
    let mut series: Vec<String> = versions
        .iter()
        .rev()
        .map(|version| {
            let numbers = version.numbers();
            dotted(numbers.get(..2).unwrap_or(&numbers))
        })
        .collect();
    series.dedup();
    if series.is_empty() {
        return "none".to_owned();
    }
    series.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(list: &[(&str, &str)]) -> Vec<Offer> {
        list.iter()
            .map(|(name, version)| Offer {
                name: (*name).to_owned(),
                version: Version::new(*version),
                suite: "any".to_owned(),
            })
            .collect()
    }

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

    #[test]
    fn newest_of_the_series_signed_first() {
        let offers = offers(&[
            ("linux-image-6.12.107+deb13-cloud-amd64", "6.12.107-1"),
            (
                "linux-image-6.12.107+deb13-cloud-amd64-unsigned",
                "6.12.107-1",
            ),
            ("linux-image-6.12.94+deb13-cloud-amd64", "6.12.94-1"),
            ("linux-image-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
            ("linux-binary-unsigned-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
            ("linux-binary-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
            ("linux-binary-7.2.12+deb13-cloud-amd64", "7.2.12-1~bpo13+1"),
            ("linux-binary-7.0.9+deb13-cloud-amd64", "7.0.9-1~bpo13+1"),
            ("linux-binary-7.0.13+deb13-cloud-amd64", "7.0.13-1~bpo13+1"),
            ("linux-binary-7.3-cloud-amd64", "7.3~rc7-1~exp1"),
            ("linux-image-7.3-cloud-amd64", "7.3~rc7-1~exp1"),
        ]);
        let name = |numbers: &[u64]| choose(&offers, numbers).map(|offer| offer.name.as_str());
        assert_eq!(name(&[7]), Some("linux-binary-7.3-cloud-amd64"));
        assert_eq!(name(&[7, 2]), Some("linux-binary-7.2.13+deb14-cloud-amd64"));
        assert_eq!(name(&[7, 0]), Some("linux-binary-7.0.13+deb13-cloud-amd64"));
        assert_eq!(
            name(&[6, 12]),
            Some("linux-image-6.12.107+deb13-cloud-amd64")
        );
        assert_eq!(name(&[6, 1]), None);
        assert_eq!(series(&offers), "7.3, 7.2, 7.0, 6.12");
        assert_eq!(series(&[]), "none");
    }

    #[test]
    fn only_kernels_are_kernels() {
        for name in [
            "linux-image-cloud-amd64",
            "linux-image-7.3-cloud-amd64-dbg",
            "linux-modules-7.3-cloud-amd64",
            "linux-image-7.3-amd64",
            "linux-binary-unsigned-",
        ] {
            assert_eq!(release(name), None, "{name}");
        }
    }
}
