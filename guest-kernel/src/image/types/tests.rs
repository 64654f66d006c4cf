use super::*;

const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const TYPEDEF: u32 = 8;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;

/// Writes type information as the kernel's build does.
#[derive(Default)]
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Writer {
    fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if name.is_empty() {
            return 0;
        }
        let at = u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    fn words(&mut self, words: &[u32]) {
        self.types
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn kind(&mut self, name: &str, kind: u32, count: usize, flag: bool, size: u32) {
        let name = self.name(name);
        let info = u32::from(flag) << 31 | kind << 24 | u32::try_from(count).unwrap();
        self.words(&[name, info, size]);
    }

    fn int(&mut self, name: &str, bytes: u32) {
        self.kind(name, INT, 0, false, bytes);
        self.words(&[bytes * 8]);
    }

    /// Members: name, type, offset in bits with the size of a bit field in its top byte.
    fn compound(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) {
        let bits = members.iter().any(|(_, _, at)| at >> 24 != 0);
        self.kind(name, kind, members.len(), bits, size);
        for (name, tid, at) in members {
            let name = self.name(name);
            self.words(&[name, *tid, *at]);
        }
    }

    fn finish(self) -> Vec<u8> {
        let types = u32::try_from(self.types.len()).unwrap();
        let strings = u32::try_from(self.strings.len()).unwrap();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            bytes.extend(u32::to_le_bytes(word));
        }
        [bytes, self.types, self.strings].concat()
    }
}

/// As in a kernel, much shortened: the id is a union with an unnamed struct.
fn kernel() -> Vec<u8> {
    let mut it = Writer::default();
    it.int("unsigned int", 4); // 1
    it.int("unsigned long long", 8); // 2
    it.kind("u64", TYPEDEF, 0, false, 2); // 3
    it.compound(STRUCT, "", 8, &[("cpu", 1, 0), ("cnt", 1, 32)]); // 4
    it.compound(UNION, "unwind_task_id", 8, &[("", 4, 0), ("id", 3, 0)]); // 5
    it.kind("", ARRAY, 0, false, 0); // 6
    it.words(&[3, 1, 5]);
    it.compound(
        STRUCT,
        "unwind_task_info",
        56,
        &[("unwind_mask", 3, 0), ("work", 6, 64), ("id", 5, 48 * 8)],
    ); // 7
    it.compound(
        STRUCT,
        "task_struct",
        200,
        &[
            ("state", 1, 0),
            ("bit", 1, 1 << 24 | 35),
            ("unwind_info", 7, 1024),
        ],
    ); // 8
    // A function of the same name as a struct, and a type that stands for itself.
    it.kind("task_struct", TYPEDEF, 0, false, 9); // 9
    it.compound(STRUCT, "loop", 8, &[("", 10, 0), ("own", 9, 0)]); // 10
    it.kind("", FUNC_PROTO, 0, false, 1); // 11
    it.kind("bpf_signal", FUNC, 1, false, 11); // 12
    it.finish()
}

fn member(path: &str) -> Result<(u64, u64), LayoutError> {
    let types = Types::parse(&kernel()).unwrap();
    let found = types.member("task_struct", path)?;
    Ok((found.offset, found.size))
}

#[test]
fn members_are_found_through_structs_unions_and_typedefs() {
    assert_eq!(member("state"), Ok((0, 4)));
    assert_eq!(member("unwind_info"), Ok((128, 56)));
    assert_eq!(member("unwind_info.unwind_mask"), Ok((128, 8)));
    assert_eq!(member("unwind_info.work"), Ok((136, 40)));
    assert_eq!(member("unwind_info.id"), Ok((176, 8)));
    assert_eq!(member("unwind_info.id.id"), Ok((176, 8)));
    assert_eq!(member("unwind_info.id.cnt"), Ok((180, 4)));
}

#[test]
fn what_there_is_not_is_named() {
    let message = |path| member(path).unwrap_err().to_string();
    assert_eq!(
        message("unwind_info.mask"),
        "task_struct.unwind_info has no member `mask`, expected one of unwind_mask, work, id"
    );
    assert_eq!(message("state.x"), "task_struct.state has no member `x`");
    assert_eq!(
        message(""),
        "task_struct has no member ``, expected one of state, bit, unwind_info"
    );
    assert_eq!(
        message("bit"),
        "task_struct.bit is a bit field, which has no address"
    );
    let types = Types::parse(&kernel()).unwrap();
    let none = types.member("nothing", "x").unwrap_err();
    assert_eq!(none.to_string(), "the kernel has no struct `nothing`");
}

#[test]
fn a_function_has_the_id_of_its_type() {
    let types = Types::parse(&kernel()).unwrap();
    assert_eq!(types.function("bpf_signal"), Ok(12));
    let none = types.function("task_struct").unwrap_err();
    let told = "the kernel has no type of a function `task_struct`";
    assert_eq!(none.to_string(), told);
}

#[test]
fn types_that_contain_themselves_end() {
    let types = Types::parse(&kernel()).unwrap();
    let missing = types.member("loop", "x").unwrap_err();
    assert!(matches!(missing, LayoutError::NoMember { .. }), "{missing}");
    let endless = types.member("loop", "own").unwrap_err();
    assert!(matches!(endless, LayoutError::Damaged(_)), "{endless}");
}

#[test]
fn damaged_information_is_an_error() {
    let whole = kernel();
    for cut in [0, 1, 10, 30, whole.len() / 2] {
        let damaged = Types::parse(&whole[..cut]);
        assert!(matches!(damaged, Err(LayoutError::Damaged(_))), "{cut}");
    }
    for at in 0..whole.len() {
        let mut wrong = whole.clone();
        wrong[at] ^= 0xff;
        // No panic, whatever it says.
        if let Ok(types) = Types::parse(&wrong) {
            let _ = types.member("task_struct", "unwind_info.id.cnt");
        }
    }
}

#[test]
fn the_information_is_read_from_between_the_symbols() {
    use crate::image::fixtures::{BASE, Layout, elf, kallsyms, symbol};

    let types = kernel();
    let load = |start: u64, stop: u64| {
        let names = [
            symbol(BASE, 'T', "_text"),
            symbol(BASE + start, 'R', "__start_BTF"),
            symbol(BASE + stop, 'R', "__stop_BTF"),
            symbol(BASE + 0x4000, 'T', "_end"),
        ];
        let mut content = types.clone();
        content.resize(content.len().next_multiple_of(8), 0);
        content.extend(kallsyms(Layout::Based, &names));
        let image = elf(&content);
        let symbols = Symbols::from_elf(&image).unwrap();
        let dir = std::env::temp_dir().join(format!("unwindlab-btf-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{start}-{stop}"));
        std::fs::write(&path, image).unwrap();
        let loaded = Types::load(&path, &symbols);
        std::fs::remove_file(&path).unwrap();
        loaded
    };
    let length = u64::try_from(types.len()).unwrap();
    let found = load(0, length).unwrap().member("task_struct", "state");
    assert_eq!(found, Ok(Member { offset: 0, size: 4 }));
    assert_eq!(load(0, 0).unwrap_err(), LayoutError::NoTypes);
    for (start, stop) in [(0, 8), (4, length), (0, 0x3000)] {
        let damaged = load(start, stop);
        assert!(
            matches!(damaged, Err(LayoutError::Damaged(_))),
            "{start}, {stop}"
        );
    }
}
