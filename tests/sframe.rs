//! The writer of SFrame sections against binutils: the same functions, the same bytes, and
//! `readelf` reads what we mean.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf::{FileHeader64, ProgramType};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use unwindlab_guest_kernel::binutils::Suite;
use unwindlab_guest_kernel::{Binutils, Cache, Silent, binutils, c_program};
use unwindlab_sframe::{Base, Function, Row, Rule, Rules, Section, Version};

/// A leaf, a function whose CFA moves, one that keeps a frame pointer, and one too long for rows of
/// one byte. Each `nop` is a byte.
const SOURCE: &str = "
        .text
        .globl  leaf, moves, keeps, far
        .type   leaf, @function
leaf:   .cfi_startproc
        ret
        .cfi_endproc
        .size   leaf, . - leaf
        .type   moves, @function
moves:  .cfi_startproc
        pushq   %rbx
        .cfi_def_cfa_offset 16
        subq    $0x1000, %rsp
        .cfi_def_cfa_offset 0x1010
        addq    $0x1000, %rsp
        .cfi_def_cfa_offset 16
        popq    %rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        .size   moves, . - moves
        .type   keeps, @function
keeps:  .cfi_startproc
        pushq   %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        movq    %rsp, %rbp
        .cfi_def_cfa_register 6
        leave
        .cfi_def_cfa 7, 8
        .cfi_restore 6
        ret
        .cfi_endproc
        .size   keeps, . - keeps
        .type   far, @function
far:    .cfi_startproc
        .skip   300, 0x90
        pushq   %rbx
        .cfi_def_cfa_offset 16
        popq    %rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        .size   far, . - far
";

fn tools(suite: Suite) -> Binutils {
    let cache = Cache::open(None).unwrap();
    binutils::binutils(&cache, suite, &Silent).unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Assembles and links a text for fixed addresses.
fn linked(tools: &Binutils, source: &str, folder: &Path) -> PathBuf {
    let [text, object, file] = ["a.s", "a.o", "a"].map(|name| folder.join(name));
    fs::write(&text, source).unwrap();
    run(tools
        .assembler()
        .args(["--gsframe", "-o"])
        .args([&object, &text]));
    run(tools
        .linker()
        .args(["-nostdlib", "-static", "-e", "leaf", "-o"])
        .args([&file, &object]));
    file
}

fn plain(offset: u32, base: Base, cfa: i32, frame_pointer: Option<i32>) -> Row {
    let rules = Rules::Plain {
        base,
        cfa,
        frame_pointer,
    };
    Row { offset, rules }
}

/// The rows of [`SOURCE`], by the lengths of its instructions.
fn functions(address: impl Fn(&str) -> (u64, u32)) -> Vec<Function> {
    use Base::{FramePointer, StackPointer};
    let sp = |offset, cfa| plain(offset, StackPointer, cfa, None);
    let rows = [
        ("leaf", vec![sp(0, 8)]),
        (
            "moves",
            vec![sp(0, 8), sp(1, 16), sp(8, 0x1010), sp(15, 16), sp(16, 8)],
        ),
        (
            "keeps",
            vec![
                sp(0, 8),
                plain(1, StackPointer, 16, Some(-16)),
                plain(4, FramePointer, 16, Some(-16)),
                sp(5, 8),
            ],
        ),
        ("far", vec![sp(0, 8), sp(301, 16), sp(302, 8)]),
    ];
    let function = |(name, rows)| {
        let (start, size) = address(name);
        Function {
            start,
            size,
            repeats: None,
            signal: false,
            rows,
        }
    };
    rows.into_iter().map(function).collect()
}

fn the_assembler_writes_what_we_write(suite: Suite, version: Version, pc_relative: bool) {
    let folder = tempfile::tempdir().unwrap();
    let tools = tools(suite);
    let data = fs::read(linked(&tools, SOURCE, folder.path())).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let theirs = elf.section_by_name(".sframe").unwrap();
    let symbol = |name: &str| {
        let found = elf
            .symbols()
            .find(|symbol| symbol.name() == Ok(name))
            .unwrap();
        (found.address(), u32::try_from(found.size()).unwrap())
    };
    let ours = Section {
        version,
        pc_relative,
        functions: functions(symbol),
    };
    let ours = ours.encode(theirs.address()).unwrap();
    assert_eq!(ours.bytes, theirs.data().unwrap(), "{}", tools.version);
}

#[test]
fn version_3_is_that_of_the_newest_assembler() {
    the_assembler_writes_what_we_write(Suite::Sid, Version::V3, true);
}

#[test]
fn version_2_is_that_of_an_older_assembler() {
    the_assembler_writes_what_we_write(Suite::Trixie, Version::V2, false);
}

/// What the newest `readelf` prints of a section.
fn printed(section: &Section) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tools = tools(Suite::Sid);
    let [bytes, text, object] = ["section", "b.s", "b.o"].map(|name| folder.path().join(name));
    fs::write(&bytes, section.encode(0).unwrap().bytes).unwrap();
    let source = format!(
        ".section .sframe,\"a\",@progbits\n.incbin \"{}\"\n",
        bytes.display()
    );
    fs::write(&text, source).unwrap();
    run(tools.assembler().arg("-o").args([&object, &text]));
    run(tools.readelf().arg("--sframe").arg(&object))
}

#[test]
fn readelf_reads_what_no_assembler_was_asked_for() {
    let stored = |register, offset| Rule {
        register,
        offset,
        stored: true,
    };
    let signal = Rules::Flexible {
        cfa: stored(Some(7), 160),
        return_address: Some(stored(Some(7), 168)),
        frame_pointer: Some(stored(Some(7), 120)),
    };
    let function = |start, size, rows| Function {
        start,
        size,
        repeats: None,
        signal: false,
        rows,
    };
    let mut plt = function(
        0x1000,
        0x40,
        vec![
            plain(0, Base::StackPointer, 8, None),
            plain(11, Base::StackPointer, 16, None),
        ],
    );
    plt.repeats = Some(16);
    let mut restorer = function(
        0x2000,
        9,
        vec![Row {
            offset: 0,
            rules: signal,
        }],
    );
    restorer.signal = true;
    let outermost = Row {
        offset: 0,
        rules: Rules::Outermost,
    };
    let start = function(0x3000, 0x20, vec![outermost]);
    let section = Section {
        version: Version::V3,
        pc_relative: true,
        functions: vec![plt, restorer, start],
    };
    let text = printed(&section);
    insta::assert_snapshot!(text);
}

/// What workload `c-program` executes: a section that exec finds, and the callers of each function.
#[test]
fn a_program_is_compiled_with_a_section_and_known_callers() {
    const PT_GNU_SFRAME: ProgramType = ProgramType(0x6474_e554);
    let cache = Cache::open(None).unwrap();
    let made = c_program(&cache, &Silent).unwrap();
    let header = FileHeader64::<Endianness>::parse(made.elf.as_slice()).unwrap();
    let segments = header.program_headers(Endianness::Little, made.elf.as_slice());
    let mut kinds = segments
        .unwrap()
        .iter()
        .map(|it| it.p_type(Endianness::Little));
    assert!(kinds.any(|kind| kind == PT_GNU_SFRAME));
    let callers = |name: &str| {
        let found = made.functions.iter().find(|it| it.name == name);
        let callers = found.unwrap().callers.iter();
        let within = |at: u64| {
            made.functions
                .iter()
                .find(|it| it.start < at && at < it.end)
        };
        let names = callers.map(|&at| within(at).unwrap().name.as_str());
        names.collect::<Vec<_>>()
    };
    let all = [
        "c_locals",
        "c_saves",
        "c_aligned",
        "c_variable",
        "c_arguments",
        "c_main",
        "_start",
    ];
    assert_eq!(callers("c_leaf"), all);
    assert_eq!(callers("_start"), [""; 0]);
}
