//! What the module above promises, with what a compiler makes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::cache::Cache;

/// Line 3 is inlined twice in one function and once in another, line 4 begins where a function does, line 9 is empty.
const SOURCE: &str = "\
int value;
static inline __attribute__((always_inline)) void mark(int by) {
    __asm__ volatile(\"nop # %0\" :: \"r\"(by));
    value += by;
}
void twice(int a, int b) {
    mark(a);
    __asm__ volatile(\"pause\" ::: \"memory\");

    mark(b);
}
void alone(void) {
    __asm__ volatile(\"hlt\");
}
void mixed(int a, int b) {
    __asm__ volatile(\"cli # %0\" :: \"r\"(b)); mark(a); __asm__ volatile(\"sti # %0\" :: \"r\"(b));
}
";

/// A program with some files in `kernel/unwind` of a tree, compiled as kbuild does: in a folder of the
/// tree.
fn program(options: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let unwind = folder.path().join("kernel/unwind");
    fs::create_dir_all(&unwind).unwrap();
    fs::create_dir_all(folder.path().join("init")).unwrap();
    let objects = folder.path().join("obj-0");
    fs::create_dir(&objects).unwrap();
    fs::write(unwind.join("deferred.c"), SOURCE).unwrap();
    fs::write(folder.path().join("init/main.c"), "void _start(void) {}\n").unwrap();
    fs::write(folder.path().join("main.c"), "void other(void) {}\n").unwrap();
    let status = Command::new("cc")
        .args(["-O2", "-nostdlib", "-static", "-no-pie", "-o", "program"])
        .args(options)
        .args(["../kernel/unwind/deferred.c", "../init/main.c", "../main.c"])
        .current_dir(&objects)
        .status()
        .unwrap();
    assert!(status.success());
    fs::read(objects.join("program")).unwrap()
}

fn place(elf: &[u8], file: &str, line: u32) -> Result<Vec<(String, u64)>, String> {
    let symbols = Symbols::from_elf(elf).unwrap();
    let lines = Lines::from_elf(elf).unwrap();
    let found = lines.place(file, line, &symbols);
    let named = |at: u64| {
        let (name, offset) = symbols.resolve(at).unwrap();
        (name.to_owned(), offset)
    };
    found
        .map(|found| found.into_iter().map(named).collect())
        .map_err(|error| error.to_string())
}

#[test]
fn a_line_is_where_it_begins() {
    for version in ["-gdwarf-5", "-gdwarf-4"] {
        let elf = program(&[version]);
        let file = "kernel/unwind/deferred.c";
        assert_eq!(place(&elf, file, 12), Ok(vec![("alone".to_owned(), 0)]));
        assert_eq!(place(&elf, file, 13), Ok(vec![("alone".to_owned(), 0)]));
        // A call is of its own line, though what is inlined for it begins at the same address.
        let calls = [7, 10, 16].map(|line| place(&elf, file, line).unwrap());
        assert!(calls.iter().all(|it| it.len() == 1), "{calls:?}");
        // In one function, and yet twice.
        let inlined = place(&elf, file, 3).unwrap();
        let [(a, at), (b, later), (c, _)] = inlined.as_slice() else {
            panic!("{inlined:?}");
        };
        assert_eq!([a, b, c], ["twice", "twice", "mixed"]);
        let pause = place(&elf, file, 8).unwrap();
        assert!(
            *at < pause[0].1 && pause[0].1 < *later,
            "{inlined:?} {pause:?}"
        );
        // The end of the path will do.
        assert_eq!(place(&elf, "deferred.c", 3), Ok(inlined));
    }
}

#[test]
fn says_what_is_no_place() {
    let elf = program(&["-gdwarf-5"]);
    assert_eq!(
        place(&elf, "kernel/unwind/deferred.c", 9).unwrap_err(),
        "kernel/unwind/deferred.c:9 has no code, lines near it that have: 8 and 10"
    );
    assert_eq!(
        place(&elf, "unwind/user.c", 1).unwrap_err(),
        "the kernel has no code of `unwind/user.c`: name a source file as it is named in its tree"
    );
    // A name that is whole is that file, not also those that end with it.
    assert_eq!(place(&elf, "main.c", 1).unwrap()[0].0, "other");
    assert_eq!(place(&elf, "init/main.c", 1).unwrap()[0].0, "_start");
    let mut lines = Lines::from_elf(&elf).unwrap();
    lines.files = ["a/core.c", "b/core.c", "b/score.c"]
        .map(str::to_owned)
        .to_vec();
    let symbols = Symbols::from_elf(&elf).unwrap();
    assert_eq!(
        lines.place("core.c", 1, &symbols).unwrap_err().to_string(),
        "the kernel has several files `core.c`: a/core.c, b/core.c"
    );
    assert_eq!(Lines::from_elf(&program(&["-g0"])), None);
}

#[test]
fn an_instruction_has_its_lines() {
    let elf = program(&["-gdwarf-5"]);
    let symbols = Symbols::from_elf(&elf).unwrap();
    let lines = Lines::from_elf(&elf).unwrap();
    let file = "kernel/unwind/deferred.c";
    let alone = symbols.address("alone").unwrap();
    assert_eq!(lines.at(alone), [(file, 12), (file, 13)]);
    let coded = lines.with_code(file);
    assert!(
        coded.is_superset(&BTreeSet::from([3, 4, 7, 8, 10, 12, 13])),
        "{coded:?}"
    );
    assert!(!coded.contains(&9) && !coded.contains(&1), "{coded:?}");
    // Behind the end of a sequence there is nothing.
    assert_eq!(lines.at(u64::MAX), []);
    assert_eq!(lines.at(0), []);
}

#[test]
fn they_are_kept_as_they_are() {
    let lines = Lines::from_elf(&program(&["-gdwarf-5"])).unwrap();
    let bytes = lines.to_bytes().unwrap();
    assert_eq!(Lines::from_bytes(&bytes), Some(lines));
    assert_eq!(Lines::from_bytes(&bytes[..40]), None);
    assert_eq!(Lines::from_bytes(b"ulsyms\x00\x01"), None);
}

#[test]
fn they_lie_in_the_cache_with_their_source() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("kernel/unwind")).unwrap();
    fs::write(tree.join("kernel/unwind/deferred.c"), SOURCE).unwrap();
    fs::write(tree.join("main.c"), "of no interest\n").unwrap();
    let elf = program(&["-gdwarf-5"]);
    keep("a", &program(&["-g0"]), Some(&tree), &cache).unwrap();
    assert_eq!(KeptLines::find("a", &cache).unwrap(), None);
    // From a file without a source, after it was built.
    keep("b", &elf, Some(&tree), &cache).unwrap();
    keep("b", &elf, None, &cache).unwrap();
    let kept = KeptLines::find("b", &cache).unwrap().unwrap();
    assert_eq!(kept.load(), Lines::from_elf(&elf));
    let text = kept.source("kernel/unwind/deferred.c");
    assert_eq!(text.as_deref(), Some(SOURCE));
    for file in [
        "main.c",
        "kernel/unwind/user.c",
        "kernel/unwind/../../lines",
    ] {
        assert_eq!(kept.source(file), None, "{file}");
    }
}

/// The names are a stranger's, and so is the tree.
#[test]
fn what_a_tree_links_to_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
    let elf = program(&["-gdwarf-5"]);
    let private = folder.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::write(private.join("deferred.c"), "private\n").unwrap();
    let kept = |id: &str, make: &dyn Fn(&Path)| {
        let tree = folder.path().join(id);
        fs::create_dir_all(tree.join("kernel")).unwrap();
        make(&tree.join("kernel/unwind"));
        keep(id, &elf, Some(&tree), &cache).unwrap();
        let kept = KeptLines::find(id, &cache).unwrap().unwrap();
        kept.source("kernel/unwind/deferred.c")
    };
    let in_folder = |unwind: &Path| {
        fs::create_dir(unwind).unwrap();
        unwind.join("deferred.c")
    };
    assert_eq!(kept("folder", &|it| symlink(&private, it).unwrap()), None);
    let link = |it: &Path| symlink(private.join("deferred.c"), in_folder(it)).unwrap();
    assert_eq!(kept("file", &link), None);
    let large = |it: &Path| {
        let file = fs::File::create(in_folder(it)).unwrap();
        file.set_len(crate::input::WRITTEN + 1).unwrap();
    };
    assert_eq!(kept("large", &large), None);
    let text = |it: &Path| fs::write(in_folder(it), "text\n").unwrap();
    assert_eq!(kept("text", &text).as_deref(), Some("text\n"));
}

#[test]
fn only_plain_names_below_the_tree_are_of_interest() {
    for file in [
        "kernel/unwind/deferred.c",
        "include/linux/irq-entry-common.h",
        "include/linux/unwind_user.h",
    ] {
        assert!(of_interest(file), "{file}");
    }
    for file in [
        "kernel/unwind/../../../etc/passwd",
        "/kernel/unwind/deferred.c",
        "include/linux/sched.h",
        "kernel/fork.c",
    ] {
        assert!(!of_interest(file), "{file}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever a file says, reading it ends.
    #[test]
    fn hostile_debug_information(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..60)) {
        static PROGRAM: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| program(&["-gdwarf-5"]));
        let mut elf = PROGRAM.clone();
        for (at, byte) in changes {
            let at = at.index(elf.len());
            elf[at] = byte;
        }
        if let Some(lines) = Lines::from_elf(&elf) {
            let _ = lines.at(0x40_1000);
            let _ = lines.to_bytes();
        }
    }
}
