//! What the module above promises.

use proptest::prelude::*;

use super::*;
use crate::image::fixtures::{self, BASE, LAYOUTS, elf, functions, kallsyms, symbol};

fn symbols(list: Vec<Symbol>) -> Symbols {
    Symbols(Table::build(list, BASE, BASE + 0x10_0000).unwrap())
}

fn sample() -> Symbols {
    symbols(vec![
        symbol(BASE, 'T', "_text"),
        symbol(BASE, 'T', "_stext"),
        symbol(BASE, 'T', "startup_64"),
        symbol(BASE + 0x40, 't', "helper"),
        symbol(BASE + 0x80, 'D', "data"),
        symbol(BASE + 0x80, 't', "code"),
        symbol(BASE + 0x100, 't', "helper"),
        symbol(BASE + 0x140, 'T', "unwind_deferred_request"),
        symbol(BASE + 0x1000, 'D', "__per_cpu_start"),
        symbol(BASE + 0x1018, 'D', "current_task"),
        symbol(BASE + 0x2000, 'D', "__per_cpu_end"),
        symbol(BASE + 0x2000, 'B', "_end"),
    ])
}

#[test]
fn names_to_addresses_and_sizes() {
    let symbols = sample();
    assert_eq!(symbols.len(), 12);
    assert_eq!(symbols.address("startup_64"), Some(BASE));
    assert_eq!(
        symbols.address("helper"),
        Some(BASE + 0x40),
        "the lowest of two"
    );
    assert_eq!(symbols.address("nothing"), None);
    assert_eq!(symbols.address(""), None);
    let all = |name| symbols.addresses(name).collect::<Vec<_>>();
    assert_eq!(all("helper"), [BASE + 0x40, BASE + 0x100]);
    assert_eq!(all("_text"), [BASE]);
    assert!(all("nothing").is_empty());
    assert_eq!(symbols.size("_text"), Some(0x40));
    assert_eq!(symbols.size("data"), Some(0x80));
    assert_eq!(symbols.size("_end"), Some(0x10_0000 - 0x2000));
    assert_eq!(symbols.size("nothing"), None);
}

#[test]
fn addresses_to_the_best_name() {
    let symbols = sample();
    assert_eq!(symbols.resolve(BASE), Some(("startup_64", 0)));
    assert_eq!(symbols.resolve(BASE + 0x3f), Some(("startup_64", 0x3f)));
    assert_eq!(
        symbols.resolve(BASE + 0x80),
        Some(("code", 0)),
        "text before data"
    );
    assert_eq!(
        symbols.resolve(BASE + 0x150),
        Some(("unwind_deferred_request", 0x10))
    );
    assert_eq!(symbols.resolve(BASE + 0xf_ffff), Some(("_end", 0xf_dfff)));
    for outside in [0, 0x40_1000, BASE - 1, BASE + 0x10_0000, u64::MAX] {
        assert_eq!(symbols.resolve(outside), None, "{outside:#x}");
    }
}

#[test]
fn per_cpu_variables_of_new_kernels() {
    let symbols = sample();
    assert_eq!(symbols.percpu_offset("current_task"), Some(BASE + 0x1018));
    assert_eq!(symbols.current_task_offset(), Some(BASE + 0x1018));
    assert_eq!(symbols.percpu_offset("data"), None);
    assert_eq!(symbols.percpu_offset("nothing"), None);
}

#[test]
fn per_cpu_variables_of_old_kernels() {
    let mut list = functions(4);
    list.extend([
        symbol(0, 'A', "__per_cpu_start"),
        symbol(0x35000, 'A', "pcpu_hot"),
        symbol(0x36000, 'A', "last"),
        symbol(0x39000, 'A', "__per_cpu_end"),
    ]);
    let symbols = symbols(list);
    assert_eq!(symbols.current_task_offset(), Some(0x35000));
    assert_eq!(symbols.size("last"), Some(0x3000));
    assert_eq!(symbols.size("__per_cpu_end"), None);
    assert_eq!(symbols.resolve(0x35000), None, "an offset is no address");
}

#[test]
fn similar_names() {
    let symbols = sample();
    assert_eq!(
        symbols.similar("unwind_defered_request"),
        ["unwind_deferred_request"]
    );
    assert_eq!(
        symbols.similar("UNWIND_DEFERRED"),
        ["unwind_deferred_request"]
    );
    assert_eq!(symbols.similar("helpr"), ["helper"]);
    assert!(symbols.similar("").len() <= 5);
    assert!(symbols.similar("something_else_altogether").is_empty());
}

#[test]
fn the_kept_file_reads_back() {
    let symbols = sample();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("symbols");
    fs::write(&path, symbols.as_bytes()).unwrap();
    assert_eq!(Symbols::load(&path).unwrap(), symbols);
    fs::write(&path, &symbols.as_bytes()[1..]).unwrap();
    assert!(matches!(
        Symbols::load(&path),
        Err(SymbolsError::Damaged(_))
    ));
    fs::write(&path, &symbols.as_bytes()[..100]).unwrap();
    assert!(matches!(
        Symbols::load(&path),
        Err(SymbolsError::Damaged(_))
    ));
    fs::remove_file(&path).unwrap();
    assert!(matches!(Symbols::load(&path), Err(SymbolsError::Io { .. })));
}

#[test]
fn a_stripped_kernel_has_kallsyms() {
    for layout in LAYOUTS {
        let kernel = elf(&kallsyms(layout, &functions(500)));
        let symbols = Symbols::from_elf(&kernel).unwrap();
        assert_eq!(symbols.address("f_500"), Some(BASE + 500 * 32));
        assert_eq!(symbols.resolve(BASE + 33), Some(("f_1", 1)));
    }
}

#[test]
fn a_kernel_without_symbols_says_so() {
    let error = Symbols::from_elf(&elf(b"nothing")).unwrap_err().to_string();
    assert!(error.contains("give the vmlinux of its build"), "{error}");
    assert!(matches!(
        Symbols::from_elf(b"nonsense"),
        Err(SymbolsError::Elf(_))
    ));
}

#[test]
fn an_elf_symbol_table_is_preferred() {
    // This test is a program with one.
    let program = fs::read(std::env::current_exe().unwrap()).unwrap();
    let symbols = Symbols::from_elf(&program).unwrap();
    let main = symbols.address("main").unwrap();
    assert_eq!(symbols.resolve(main), Some(("main", 0)));
    assert!(
        symbols
            .iter()
            .any(|(address, kind, name)| { (address, kind, name) == (main, 'T', "main") })
    );
}

proptest! {
    #[test]
    fn every_symbol_is_found(
        list in prop::collection::btree_map("[a-z_]{1,8}", 0..0x1000_u64, 1..80),
    ) {
        let all = list.iter().map(|(name, at)| symbol(BASE + at, 't', name)).collect();
        let symbols = symbols(all);
        for (name, at) in &list {
            prop_assert_eq!(symbols.address(name), Some(BASE + at));
            prop_assert_eq!(symbols.addresses(name).collect::<Vec<_>>(), [BASE + at]);
            let (best, offset) = symbols.resolve(BASE + at).unwrap();
            prop_assert_eq!(offset, 0);
            prop_assert_eq!(symbols.address(best), Some(BASE + at));
        }
    }

    #[test]
    fn a_damaged_file_never_panics(
        changes in prop::collection::vec((8..512_usize, any::<u8>()), 1..6),
        address in any::<u64>(),
    ) {
        let mut bytes = sample().as_bytes().to_vec();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if let Some(symbols) = Table::from_bytes(bytes).map(Symbols) {
            let _ = (symbols.resolve(address), symbols.resolve(BASE + 0x50), symbols.size("data"));
            let _ = (symbols.similar("helper"), symbols.iter().count(), symbols.address("helper"));
        }
    }

    #[test]
    fn any_elf_never_panics(changes in prop::collection::vec((0..0x1100_usize, any::<u8>()), 1..8)) {
        let mut kernel = elf(&kallsyms(fixtures::Layout::Relative, &functions(20)));
        for (at, byte) in changes {
            kernel[at] = byte;
        }
        let _ = Symbols::from_elf(&kernel);
    }
}
