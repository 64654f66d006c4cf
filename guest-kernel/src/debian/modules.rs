//! Kernel modules: which other modules one needs, and in which order they are loaded.
//!
//! A package has no modules.dep (depmod makes it at installation), but every module names its
//! dependencies in its `.modinfo` section: `depends=kvm,ccp`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::zstd;
use object::{Object, ObjectSection};

/// Why modules cannot be extracted.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// One is missing.
    #[error("the kernel's package has no module {0}")]
    Missing(String),
    /// One cannot be read.
    #[error("cannot read the module {name}: {source}")]
    Read { name: String, source: io::Error },
    /// One is not an ELF object.
    #[error("the module {name} is damaged: {source}")]
    Damaged { name: String, source: object::Error },
}

/// A decompressed module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name as the kernel knows it, with underscores.
    pub name: String,
    pub content: Vec<u8>,
}

/// The name of the module in a file: `kvm_amd` for `kernel/arch/x86/kvm/kvm-amd.ko.xz`.
pub(crate) fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = ["", ".xz", ".zst", ".gz"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix)?.strip_suffix(".ko"))?;
    Some(stem.replace('-', "_"))
}

/// The modules in `wanted` and all they depend on, dependencies first. `files` are those of the
/// package, by module name.
pub(crate) fn load_order(
    wanted: &[&str],
    files: &BTreeMap<String, PathBuf>,
) -> Result<Vec<Module>, ModulesError> {
    let mut ordered = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        add(name, files, &mut seen, &mut ordered)?;
    }
    Ok(ordered)
}

/// Adds a module after its dependencies. It enters `seen` before they are added, so that a cycle
/// among damaged modules does not recurse for ever.
fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    seen: &mut BTreeSet<String>,
    ordered: &mut Vec<Module>,
) -> Result<(), ModulesError> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let file = files
        .get(name)
        .ok_or_else(|| ModulesError::Missing(name.to_owned()))?;
    let content = read(file).map_err(|source| ModulesError::Read {
        name: name.to_owned(),
        source,
    })?;
    let needed = dependencies(&content).map_err(|source| ModulesError::Damaged {
        name: name.to_owned(),
        source,
    })?;
    for needed in needed {
        add(&needed, files, seen, ordered)?;
    }
    ordered.push(Module {
        name: name.to_owned(),
        content,
    });
    Ok(())
}

/// The file's content, decompressed as its name says.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = io::BufReader::new(std::fs::File::open(path)?);
    let mut reader: Box<dyn Read> = match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("xz") => Box::new(liblzma::bufread::XzDecoder::new(file)),
        Some("zst") => Box::new(zstd::Decoder::new(file)?),
        Some("gz") => Box::new(flate2::bufread::GzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut content = Vec::new();
    reader.by_ref().take(256 << 20).read_to_end(&mut content)?;
    Ok(content)
}

/// The names after `depends=` in a module's `.modinfo`.
fn dependencies(module: &[u8]) -> object::Result<Vec<String>> {
    let file = object::File::parse(module)?;
    let Some(section) = file.section_by_name(".modinfo") else {
        return Ok(Vec::new());
    };
    let text = section.data()?;
    let names = text
        .split(|byte| *byte == 0)
        .filter_map(|field| str::from_utf8(field).ok()?.strip_prefix("depends="))
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"));
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("kernel/kvm/kvm-amd.ko.xz").as_deref(), Some("kvm_amd"));
        assert_eq!(name("kvm.ko").as_deref(), Some("kvm"));
        assert_eq!(name("ccp.ko.zst").as_deref(), Some("ccp"));
        assert_eq!(name("modules.order"), None);
        assert_eq!(name("kvm.ko.bz2"), None);
    }

    #[test]
    fn says_what_is_missing() {
        let error = load_order(&["kvm_amd"], &BTreeMap::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel's package has no module kvm_amd"
        );
    }

    #[test]
    fn nonsense_is_no_module() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvm.ko");
        std::fs::write(&path, b"\x7fELF nonsense").unwrap();
        let files = BTreeMap::from([("kvm".to_owned(), path)]);
        assert!(matches!(
            load_order(&["kvm"], &files),
            Err(ModulesError::Damaged { .. })
        ));
    }
}
