//! `run --perf-data DIR`: each trial's recording as a file that perf opens, beside an ELF file that names the functions
//! of the workload.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::output_file::{OutputFile, WriteError};
use crate::judge::result::{Artifact, ScenarioResult};
use unwindlab_abi::message::UserSymbol;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::perf_data::write::{MappedProgram, write};

/// Where the code is in the ELF file, and what its address is rounded to.
const PAGE: u64 = 4096;
/// Bytes of code at most.
const MOST_CODE: u64 = 64 << 20;

/// The folder.
#[derive(Debug, Clone)]
pub struct PerfDataFolder {
    root: PathBuf,
    /// Trials of each scenario.
    trials: BTreeMap<String, u32>,
}

impl PerfDataFolder {
    /// The folder, created and writable.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn open(root: &Path) -> Result<Self, WriteError> {
        std::fs::create_dir_all(root).map_err(WriteError::of(root))?;
        tempfile::tempfile_in(root).map_err(WriteError::of(root))?;
        Ok(Self {
            // perf looks for the program by its path.
            root: root.canonicalize().map_err(WriteError::of(root))?,
            trials: BTreeMap::new(),
        })
    }

    /// Writes a trial's recording, and adds its path to the result. A trial in which the harness traced nothing
    /// leaves none.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn keep(
        &mut self,
        result: &mut ScenarioResult,
        recording: &Recording,
    ) -> Result<(), WriteError> {
        let trial = self.trials.entry(result.name.clone()).or_default();
        *trial += 1;
        let name = match *trial {
            1 => result.name.clone(),
            more => format!("{}-{more}", result.name),
        };
        let program = self.root.join(format!("{name}.workload"));
        let elf = Elf::of(&recording.user_symbols);
        let mapped = elf.as_ref().map(|elf| MappedProgram {
            path: program.display().to_string(),
            start: elf.start,
            len: elf.len,
            offset: PAGE,
        });
        // What has no form that perf opens has no file.
        let Ok(data) = write(recording, mapped.as_ref()) else {
            return Ok(());
        };
        if let Some(elf) = elf {
            OutputFile::create(&program)?.finish(elf.bytes())?;
        }
        let path = self.root.join(format!("{name}.data"));
        OutputFile::create(&path)?.finish(data)?;
        result.artifacts.push(Artifact {
            kind: "perf data".to_owned(),
            path,
        });
        Ok(())
    }
}

/// An ELF file with symbols and without code.
#[derive(Debug)]
struct Elf<'a> {
    symbols: Vec<&'a UserSymbol>,
    start: u64,
    len: u64,
}

impl<'a> Elf<'a> {
    /// Of functions: a label has no length. `None` where there are none.
    fn of(symbols: &'a [UserSymbol]) -> Option<Self> {
        let functions = symbols.iter().filter(|it| it.start < it.end);
        let symbols: Vec<&UserSymbol> = functions.collect();
        let start = symbols.iter().map(|it| it.start).min()? / PAGE * PAGE;
        let end = symbols.iter().map(|it| it.end).max()?;
        let len = end.checked_sub(start)?.checked_next_multiple_of(PAGE)?;
        (len <= MOST_CODE).then_some(Self {
            symbols,
            start,
            len,
        })
    }

    /// The file: headers, a segment of zeros for the code, symbols and names (System V ABI, chapters 4 and 5).
    fn bytes(&self) -> Vec<u8> {
        let mut names = vec![0];
        let mut table = vec![0; SYMBOL];
        for symbol in &self.symbols {
            table.extend(word(names.len() as u64));
            // STB_GLOBAL, STT_FUNC; in section 1.
            table.extend([0x12, 0, 1, 0]);
            table.extend(long(symbol.start));
            table.extend(long(symbol.end - symbol.start));
            names.extend(symbol.name.bytes().filter(|it| *it != 0));
            names.push(0);
        }
        let sections = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
        let table_at = PAGE + self.len;
        let names_at = table_at + table.len() as u64;
        let sections_at = names_at + names.len() as u64;
        let headers_at = (sections_at + sections.len() as u64).next_multiple_of(8);

        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        // ET_EXEC, EM_X86_64, version 1
        out.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        out.extend(
            [long(self.start), long(64), long(headers_at), long(0)]
                .concat()
                .get(..28)
                .unwrap_or_default(),
        );
        for half in [64_u16, 56, 1, 64, 5, 4] {
            out.extend(half.to_le_bytes());
        }
        // PT_LOAD, readable and executable
        out.extend([1, 0, 0, 0, 5, 0, 0, 0]);
        for value in [PAGE, self.start, self.start, self.len, self.len, PAGE] {
            out.extend(long(value));
        }
        out.resize(usize::try_from(table_at).unwrap_or(out.len()), 0);
        out.extend(&table);
        out.extend(&names);
        out.extend(sections);
        out.resize(out.len().next_multiple_of(8), 0);
        let header = |name: u64, kind: u64, flags: u64, at: [u64; 3], link: u64, each: u64| {
            let [address, offset, len] = at;
            let ends = [word(name), word(kind)].concat();
            let middle = [flags, address, offset, len].map(long).concat();
            // Of a symbol table: the first that is not local.
            let info = word(u64::from(link != 0));
            let tail = [
                word(link).to_vec(),
                info.to_vec(),
                long(1).to_vec(),
                long(each).to_vec(),
            ]
            .concat();
            [ends, middle, tail].concat()
        };
        out.extend([0; 64]);
        out.extend(header(1, 1, 6, [self.start, PAGE, self.len], 0, 0));
        out.extend(header(
            7,
            2,
            0,
            [0, table_at, table.len() as u64],
            3,
            SYMBOL as u64,
        ));
        out.extend(header(15, 3, 0, [0, names_at, names.len() as u64], 0, 0));
        out.extend(header(
            23,
            3,
            0,
            [0, sections_at, sections.len() as u64],
            0,
            0,
        ));
        out
    }
}

/// Bytes of a symbol.
const SYMBOL: usize = 24;

const fn long(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

/// The low four bytes: offsets in a table of names of some kilobytes.
fn word(value: u64) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSymbol as _};
    use unwindlab_abi::message::EventAnnounce;
    use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};

    use super::*;
    use crate::judge::Outcome;

    fn symbol(name: &str, start: u64, end: u64) -> UserSymbol {
        let name = name.to_owned();
        UserSymbol { name, start, end }
    }

    #[test]
    fn each_trial_has_a_file_and_one_without_events_none() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = PerfDataFolder::open(root.path()).unwrap();
        let spec = EventSpec::blank("nmi", EventSource::Dummy);
        let traced = Recording {
            tracing: Some(Tracing {
                ring_pages: 1,
                events: vec![spec],
            }),
            events: vec![EventAnnounce {
                spec: 0,
                cpu: 0,
                id: 1,
                ring: 0,
            }],
            ..Recording::default()
        };
        let mut result = ScenarioResult::not_run("a", Outcome::Pass, String::new());
        for recording in [&traced, &Recording::default(), &traced] {
            folder.keep(&mut result, recording).unwrap();
        }
        let names = result
            .artifacts
            .iter()
            .map(|it| it.path.file_name().unwrap());
        let names: Vec<_> = names.map(|it| it.to_str().unwrap()).collect();
        assert_eq!(names, ["a.data", "a-3.data"]);
        let bytes = std::fs::read(root.path().join("a-3.data")).unwrap();
        assert!(bytes.starts_with(b"PERFILE2"));
    }

    #[test]
    fn the_functions_of_the_workload_are_in_its_file() {
        let symbols = [
            symbol("leaf", 0x40_1010, 0x40_1080),
            symbol("label", 0x40_1020, 0x40_1020),
            symbol("root", 0x40_3000, 0x40_3100),
        ];
        let elf = Elf::of(&symbols).unwrap();
        assert_eq!((elf.start, elf.len), (0x40_1000, 0x3000));
        let bytes = elf.bytes();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let told: Vec<_> = { file.symbols() }
            .map(|it| (it.name().unwrap().to_owned(), it.address(), it.size()))
            .collect();
        let expected = [("leaf", 0x40_1010, 0x70), ("root", 0x40_3000, 0x100)];
        assert_eq!(
            told,
            expected.map(|(name, at, len)| (name.to_owned(), at, len))
        );
        assert!(Elf::of(&symbols[1..2]).is_none());
        assert!(Elf::of(&[symbol("far", 0, 1), symbol("end", u64::MAX - 1, u64::MAX)]).is_none());
    }
}
