//! The errors of wrong scenarios, and the plans of right ones.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod bad_input;
mod bpf;
mod good_input;
mod lab;
mod lacks;
mod lines;
mod place;
mod schema;
mod sources;
mod template;
mod tracefs;
mod triggers;
mod units;
mod user_returns;

use std::collections::{BTreeMap, BTreeSet};

use unwindlab_guest_kernel::lines::LineError;
use unwindlab_guest_kernel::types::{LayoutError, Member};
use unwindlab_scenario::error::ScenarioErrors;
use unwindlab_scenario::model::Scenario;

use unwindlab_scenario::{KernelSymbols, RdpmcError, SourceLines, check::check, parse::parse};

/// The shortest scenario there is.
const MINIMAL: &str = "\
name: x
description: The shortest scenario there is.
workload:
  kind: spin
  frames: 3
";

const INVARIANTS: [&str; 3] = ["C1", "M1", "S1"];

fn load(text: &str) -> Result<Scenario, ScenarioErrors> {
    check("dir/x.yaml", "x", parse("dir/x.yaml", text)?, &INVARIANTS)
}

/// The errors of a scenario, without the file's name.
fn complaints(text: &str) -> Vec<String> {
    let ScenarioErrors(found) = load(text).unwrap_err();
    let lines = found.iter().map(ToString::to_string);
    lines
        .map(|line| {
            assert!(!line.contains('\n'), "more than a line: {line}");
            line.strip_prefix("dir/x.yaml:").unwrap().to_owned()
        })
        .collect()
}

/// A kernel with a few functions: address and size by name.
struct Kernel(BTreeMap<&'static str, Vec<(u64, u64)>>);

impl Kernel {
    fn new() -> Self {
        Self(BTreeMap::from([
            (
                "unwind_deferred_request",
                vec![(0xffff_ffff_8100_0000, 0x100)],
            ),
            ("__x64_sys_getppid", vec![(0xffff_ffff_8200_0000, 0x20)]),
            ("counter", vec![(0x2000, 4)]),
            (
                "twice",
                vec![(0xffff_ffff_8300_0000, 8), (0xffff_ffff_8400_0000, 8)],
            ),
        ]))
    }
}

impl KernelSymbols for Kernel {
    fn addresses(&self, name: &str) -> Vec<u64> {
        let found = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        found.iter().map(|(address, _)| *address).collect()
    }

    fn size(&self, name: &str) -> Option<u64> {
        Some(self.0.get(name)?.first()?.1)
    }

    fn similar(&self, name: &str) -> Vec<String> {
        let near = self.0.keys().filter(|known| known.contains(name));
        near.map(ToString::to_string).collect()
    }

    fn current_task_offset(&self) -> Option<u64> {
        Some(0x1000)
    }

    fn percpu_offset(&self, name: &str) -> Option<u64> {
        let address = self.0.get(name)?.first()?.0;
        (address < 0x10000).then_some(address)
    }

    fn member(&self, _: &str, path: &str) -> Result<Member, LayoutError> {
        if self.0.contains_key("stripped") {
            return Err(LayoutError::NoTypes);
        }
        let (offset, size) = match path {
            "unwind_info.id" => (0x28, 8),
            "comm" => (0x34, 16),
            _ => {
                return Err(LayoutError::NoMember {
                    place: "task_struct".to_owned(),
                    member: path.to_owned(),
                    near: String::new(),
                });
            }
        };
        Ok(Member { offset, size })
    }

    fn function(&self, name: &str) -> Result<u32, LayoutError> {
        match self.0.contains_key("stripped") {
            true => Err(LayoutError::NoFunction(name.to_owned())),
            false => Ok(7),
        }
    }

    /// endbr64; mov rax, rdi; then one-byte instructions.
    fn code(&self, _: u64, length: usize) -> Option<Vec<u8>> {
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xf8];
        Some(code.into_iter().chain([0x90; 64]).take(length).collect())
    }

    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        let offset = address.checked_sub(0xffff_ffff_8200_0000)?;
        (offset < 0x20).then(|| ("__x64_sys_getppid".to_owned(), offset))
    }

    fn lines(&self) -> Option<&dyn SourceLines> {
        (!self.0.contains_key("stripped")).then_some(self as &dyn SourceLines)
    }

    fn rdpmc_sites(&self) -> Result<Vec<u64>, RdpmcError> {
        let found = self.0.keys().any(|name| *name == "__x64_sys_getppid");
        Ok(found.then_some(0xffff_ffff_8200_0010).into_iter().collect())
    }
}

/// Line 1 of `sys.c` is in one place, line 2 in two.
impl SourceLines for Kernel {
    fn place(&self, file: &str, line: u32) -> Result<Vec<u64>, LineError> {
        match (file, line) {
            ("sys.c", 1) => Ok(vec![0xffff_ffff_8200_0007]),
            ("sys.c", 2) => Ok(vec![0xffff_ffff_8200_0004, 0xffff_ffff_8200_0010]),
            _ => Err(LineError::NoFile(file.to_owned())),
        }
    }

    fn at(&self, _: u64) -> Vec<(&str, u32)> {
        Vec::new()
    }

    fn with_code(&self, _: &str) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    fn text(&self, _: &str) -> Option<String> {
        None
    }
}
