//! Where the kernel returns to user mode.

use unwindlab_scenario::KernelSymbols;
use unwindlab_scenario::user_returns::{MOST, MOST_BY_DEFAULT, plan, sites};

const BASE: u64 = 0xffff_ffff_8200_0000;

/// An entry text, with its labels.
struct Entries {
    code: &'static [u8],
    labels: &'static [(&'static str, u64)],
}

impl KernelSymbols for Entries {
    fn addresses(&self, name: &str) -> Vec<u64> {
        match name {
            "__entry_text_start" => vec![BASE],
            "__entry_text_end" => vec![BASE + self.code.len() as u64],
            _ => Vec::new(),
        }
    }
    fn size(&self, _: &str) -> Option<u64> {
        None
    }
    fn similar(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
    fn current_task_offset(&self) -> Option<u64> {
        None
    }
    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        let before = |(_, at): &&(&str, u64)| BASE + at <= address;
        let (name, at) = self.labels.iter().rev().find(before)?;
        Some(((*name).to_owned(), address - BASE - at))
    }
    fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        assert_eq!((address, length), (BASE, self.code.len()));
        Some(self.code.to_vec())
    }
}

#[test]
fn returns_are_found_but_those_of_nmis() {
    let entries = Entries {
        // sysretq; int3; sysretl; iretq; a mov that has iretq's bytes in it; a byte of a
        // longer instruction, then iretq at a label.
        code: &[
            0x48, 0x0f, 0x07, 0xcc, 0x0f, 0x07, 0x48, 0xcf, 0xb8, 0x48, 0xcf, 0, 0, 0xe8, 0x48,
            0xcf, 0x90, 0x90, 0x90,
        ],
        labels: &[
            ("entry_SYSCALL_64", 0),
            ("end_repeat_nmi", 6),
            ("native_irq_return_iret", 14),
        ],
    };
    assert_eq!(sites(&entries), [BASE, BASE + 4, BASE + 14]);
    let most = |wanted, records| plan(wanted, records, &entries).map(|it| it.most);
    assert_eq!(most(Some(false), true), None);
    assert_eq!(most(None, true), Some(MOST_BY_DEFAULT));
    assert_eq!(most(None, false), None);
    assert_eq!(most(Some(true), false), Some(MOST));
}

#[test]
fn without_entry_text_there_is_no_witness() {
    let nothing = Entries {
        code: &[],
        labels: &[],
    };
    assert_eq!(plan(Some(true), true, &nothing), None);
}
