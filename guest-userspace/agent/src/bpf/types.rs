//! The program's type information (BTF, Documentation/bpf/btf.rst): a map's value with task work in it, and
//! the program's functions.

/// The value of the map of pending nonces: the nonce, and the kernel's bookkeeping of task work.
pub(super) const VALUE_BYTES: u32 = 16;
/// Byte offset of the bookkeeping.
pub(super) const WORK: i32 = 8;

/// Ids of types, by their order from 1.
pub(super) const KEY: u32 = 1;
const WORD: u32 = 2;
const TASK_WORK: u32 = 3;
pub(super) const VALUE: u32 = 4;
const PROTOTYPE: u32 = 5;
/// The program and its callback.
pub(super) const FUNCTIONS: [u32; 2] = [6, 7];

const MAGIC: u16 = 0xeb9f;
const HEADER: u32 = 24;

/// `enum` of kinds.
const INT: u32 = 1;
const STRUCT: u32 = 4;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
/// Linkage of a function.
const STATIC: u32 = 0;
const GLOBAL: u32 = 1;

#[derive(Default)]
struct Types {
    types: Vec<u32>,
    names: Vec<u8>,
}

impl Types {
    fn name(&mut self, name: &str) -> u32 {
        let at = u32::try_from(self.names.len()).unwrap_or(0);
        self.names.extend(name.bytes().chain([0]));
        at
    }

    /// A type, with `count` members or what its kind has there.
    fn add(&mut self, name: &str, kind: u32, count: u32, size_or_type: u32, rest: &[u32]) {
        let name = match name {
            "" => 0,
            name => self.name(name),
        };
        self.types.extend([name, kind << 24 | count, size_or_type]);
        self.types.extend(rest);
    }
}

/// All of it, as `BPF_BTF_LOAD` takes it.
pub(super) fn types() -> Vec<u8> {
    let mut all = Types {
        names: vec![0],
        ..Types::default()
    };
    all.add("key", INT, 0, 4, &[32]);
    all.add("word", INT, 0, 8, &[64]);
    let opaque = all.name("__opaque");
    // The kernel knows the struct by its name.
    all.add("bpf_task_work", STRUCT, 1, 8, &[opaque, WORD, 0]);
    let [nonce, work] = ["nonce", "work"].map(|it| all.name(it));
    let members = [nonce, WORD, 0, work, TASK_WORK, 8 * WORK.cast_unsigned()];
    all.add("value", STRUCT, 2, VALUE_BYTES, &members);
    all.add("", FUNC_PROTO, 0, KEY, &[]);
    all.add("unwind_request", FUNC, GLOBAL, PROTOTYPE, &[]);
    all.add("unwind_answer", FUNC, STATIC, PROTOTYPE, &[]);
    let types = all.types.iter().flat_map(|it| it.to_le_bytes());
    let types: Vec<u8> = types.collect();
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(0);
    let version = u32::from(MAGIC) | 1 << 16;
    let header = [
        version,
        HEADER,
        0,
        len(&types),
        len(&types),
        len(&all.names),
    ];
    let header = header.iter().flat_map(|it| it.to_le_bytes());
    header
        .chain(types.iter().copied())
        .chain(all.names)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::Endianness;
    use aya_obj::btf::{Btf, BtfKind};

    #[test]
    fn the_ids_are_the_order() {
        let btf = Btf::parse(&types(), Endianness::Little).unwrap();
        let id = |name, kind| btf.id_by_type_name_kind(name, kind).unwrap();
        assert_eq!(id("key", BtfKind::Int), KEY);
        assert_eq!(id("word", BtfKind::Int), WORD);
        assert_eq!(id("bpf_task_work", BtfKind::Struct), TASK_WORK);
        assert_eq!(id("value", BtfKind::Struct), VALUE);
        let functions = ["unwind_request", "unwind_answer"];
        assert_eq!(functions.map(|it| id(it, BtfKind::Func)), FUNCTIONS);
    }
}
