//! Which package holds a stock kernel.
//!
//! # The rule for `stock`
//! Of all packages of all suites that hold a cloud kernel for amd64, take those whose version begins
//! with the requested numbers (`7` for `stock`, `7.0` for `stock:7.0`), and of these the newest
//! Debian version. Release candidates count (`7.3~rc7` is newer than 7.2.13 and older than 7.3), and
//! so do packages that wait for their Secure Boot signature (`-unsigned`): the code is the same, and
//! nothing checks the signature here. Of the same version the signed package is taken.
//!
//! Superseded versions leave the archive, so this code names no version.
//!
//! # How Debian splits a kernel
//! - `linux-image-REL-cloud-amd64`, up to 6.18: everything in one;
//! - `linux-binary-REL-cloud-amd64`, from 6.19 on: the kernel alone; `linux-base-REL` has the
//!   configuration and `linux-modules-REL` the modules. `linux-image-REL` is then an empty package
//!   that depends on these.
//!
//! The kernel is `boot/vmlinuz-REL`, `usr/lib/modules/REL/vmlinuz` or
//! `usr/lib/modules/REL/vmlinuz.unsigned`.

use std::path::{Path, PathBuf};

use super::apt::Offer;
use super::version::{Version, dotted};

/// The release whose kernel a package may hold, and the package's rank among those of the same
/// version, where less is better.
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

/// Whether a package of this name may hold a cloud kernel, its configuration or its modules.
pub(crate) fn is_of_interest(package: &str) -> bool {
    let companion = [BASE, MODULES]
        .iter()
        .any(|prefix| package.starts_with(prefix) && package.ends_with("-cloud-amd64"));
    companion || release(package).is_some()
}

/// Prefix of the package with the configuration, where that is a package of its own.
pub(crate) const BASE: &str = "linux-base-";
/// Prefix of the package with the modules, where that is a package of its own.
pub(crate) const MODULES: &str = "linux-modules-";

/// The package with this prefix that belongs to a kernel's package.
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

/// Chooses the newest offer whose version begins with `numbers`, by the rule above.
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

/// The series on offer, for a message: each once, newest first.
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

/// Name of the unpacked kernel.
pub(crate) const VMLINUZ: &str = "vmlinuz";
/// Name of its configuration.
pub(crate) const CONFIG: &str = "config";

/// The name under which a file of a kernel's package is unpacked, if it is.
pub(crate) fn kernel_file(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    let name = path.file_name()?.to_str()?;
    let wanted = if folder == Path::new("boot") {
        [VMLINUZ, CONFIG].into_iter().find(|wanted| {
            name.strip_prefix(wanted)
                .is_some_and(|release| release.starts_with('-'))
        })
    } else if folder.parent() == Some(Path::new("usr/lib/modules")) {
        let signed = name.strip_suffix(".unsigned").unwrap_or(name);
        [VMLINUZ, CONFIG]
            .into_iter()
            .find(|wanted| signed == *wanted)
    } else {
        None
    };
    wanted.map(PathBuf::from)
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

    #[test]
    fn where_packages_keep_the_kernel() {
        let place =
            |path: &str| kernel_file(Path::new(path)).map(|to| to.to_string_lossy().into_owned());
        for (from, to) in [
            ("boot/vmlinuz-6.12.107+deb13-cloud-amd64", Some("vmlinuz")),
            ("boot/config-6.12.107+deb13-cloud-amd64", Some("config")),
            (
                "usr/lib/modules/7.2.13+deb14-cloud-amd64/vmlinuz",
                Some("vmlinuz"),
            ),
            (
                "usr/lib/modules/7.3.4+deb13-cloud-amd64/vmlinuz.unsigned",
                Some("vmlinuz"),
            ),
            (
                "usr/lib/modules/7.2.13+deb14-cloud-amd64/config",
                Some("config"),
            ),
            ("usr/lib/modules/7.2.13+deb14-cloud-amd64/System.map", None),
            ("boot/System.map-6.12", None),
            ("boot/vmlinuz", None),
            ("usr/share/doc/vmlinuz", None),
            ("vmlinuz", None),
        ] {
            assert_eq!(place(from).as_deref(), to, "{from}");
        }
    }
}
