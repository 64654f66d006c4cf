//! A kernel's own type information (BTF): where a member of a struct is, and by what id a BPF program calls a function.
//!
//! Format: Documentation/bpf/btf.rst. The kernel carries it in its image, between the symbols
//! `__start_BTF` and `__stop_BTF`, if it was built with `CONFIG_DEBUG_INFO_BTF`.

use std::path::Path;

use btfparse::{Offset, Readable, TypeInformation, TypeVariant};
use serde::{Deserialize, Serialize};

use super::symbols::Symbols;
use super::text;

pub mod noted;

/// What a kernel without type information lacks.
pub const NO_TYPES: &str = "the kernel has no type information (BTF), which tells the offsets of \
    a struct's members: build it with CONFIG_DEBUG_INFO_BTF";

/// More than any kernel has: that of Debian's has 5 MB.
const MAX_SIZE: u64 = 64 << 20;
/// Most steps from a type to what it stands for. The kernel's own limit is 32
/// (`MAX_RESOLVE_DEPTH`, kernel/bpf/btf.c).
const MAX_DEPTH: usize = 32;
/// Most members that are looked at for one name. A struct of the kernel has some hundred; one with unnamed members of its own type
/// would have no end.
const MAX_MEMBERS: usize = 100_000;

/// Why a member, or a function, is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum LayoutError {
    /// The kernel was built without.
    #[error("{NO_TYPES}")]
    NoTypes,
    /// The image cannot be read, or its type information is damaged.
    #[error("cannot read the kernel's type information (BTF): {0}")]
    Damaged(String),
    /// No such struct.
    #[error("the kernel has no struct `{0}`")]
    NoStruct(String),
    /// The struct has no such member.
    #[error("{place} has no member `{member}`{near}")]
    NoMember {
        place: String,
        member: String,
        near: String,
    },
    /// No such function.
    #[error("the kernel has no type of a function `{0}`")]
    NoFunction(String),
    /// A bit field has no address.
    #[error("{0} is a bit field, which has no address")]
    BitField(String),
}

/// A member of a struct, or of a struct in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Bytes from the start of the outermost struct.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// The types of a kernel.
pub struct Types(TypeInformation);

impl std::fmt::Debug for Types {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Types({})", self.0.get().len())
    }
}

impl Types {
    /// Reads the type information in a vmlinux.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn load(vmlinux: &Path, symbols: &Symbols) -> Result<Self, LayoutError> {
        let (Some(start), Some(stop)) = (
            symbols.address("__start_BTF"),
            symbols.address("__stop_BTF"),
        ) else {
            return Err(LayoutError::NoTypes);
        };
        let damaged = |what: &str| LayoutError::Damaged(what.to_owned());
        let size = stop.checked_sub(start).filter(|size| *size <= MAX_SIZE);
        let size = size.and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or_else(|| damaged("its size is not possible"))?;
        if size == 0 {
            return Err(LayoutError::NoTypes);
        }
        let bytes = text::read(vmlinux, start, size)
            .map_err(|error| damaged(&error.to_string()))?
            .filter(|bytes| bytes.len() == size)
            .ok_or_else(|| damaged("it is not in the image"))?;
        Self::parse(&bytes)
    }

    /// Parses the contents of `.BTF` or `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    /// [`LayoutError::Damaged`].
    pub fn parse(bytes: &[u8]) -> Result<Self, LayoutError> {
        TypeInformation::new(&Bytes(bytes))
            .map(Self)
            .map_err(|error| LayoutError::Damaged(error.message().to_owned()))
    }

    /// The member of a struct at a path such as `unwind_info.id`. Members of unnamed structs and
    /// unions in it count as its own, as in C.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn member(&self, structure: &str, path: &str) -> Result<Member, LayoutError> {
        let is_it = |it: &&TypeVariant| match it {
            TypeVariant::Struct(it) => it.name().as_deref() == Some(structure),
            _ => false,
        };
        let found = self.0.get().values().find(is_it);
        let mut here = found.ok_or_else(|| LayoutError::NoStruct(structure.to_owned()))?;
        let mut place = structure.to_owned();
        let mut offset = 0_u64;
        for name in path.split('.') {
            let inside = self.find(here, name, MAX_DEPTH, &mut { MAX_MEMBERS });
            let (at, tid) = inside.ok_or_else(|| self.no_member(here, &place, name))?;
            place = format!("{place}.{name}");
            let at = at.ok_or_else(|| LayoutError::BitField(place.clone()))?;
            offset = offset.saturating_add(at);
            let unknown = || LayoutError::Damaged(format!("the type of {place} is missing"));
            here = self.plain(tid).ok_or_else(unknown)?;
        }
        let size = self.size(here, MAX_DEPTH);
        let size = size.ok_or_else(|| LayoutError::Damaged(format!("{place} has no size")))?;
        Ok(Member { offset, size })
    }

    /// The id of a function, as a BPF program's call names it (`BPF_PSEUDO_KFUNC_CALL`, Documentation/bpf/kfuncs.rst).
    ///
    /// # Errors
    /// [`LayoutError::NoFunction`].
    pub fn function(&self, name: &str) -> Result<u32, LayoutError> {
        let is_it = |it: &TypeVariant| match it {
            TypeVariant::Func(it) => it.name().as_deref() == Some(name),
            _ => false,
        };
        let found = self.0.get().iter().find(|(_, it)| is_it(it));
        let (id, _) = found.ok_or_else(|| LayoutError::NoFunction(name.to_owned()))?;
        Ok(*id)
    }

    /// Offset and type of a member; no offset for a bit field. It looks at `left` members at most.
    fn find(
        &self,
        of: &TypeVariant,
        name: &str,
        depth: usize,
        left: &mut usize,
    ) -> Option<(Option<u64>, u32)> {
        let depth = depth.checked_sub(1)?;
        for member in members(of)? {
            *left = left.checked_sub(1)?;
            let at = match member.offset() {
                Offset::ByteOffset(at) => Some(u64::from(at)),
                Offset::BitOffsetAndSize(..) => None,
            };
            match member.name() {
                Some(other) if other == name => return Some((at, member.tid())),
                None => {
                    let inside = self.plain(member.tid());
                    let found = inside.and_then(|it| self.find(it, name, depth, left));
                    if let (Some(at), Some((inner, tid))) = (at, found) {
                        return Some((inner.map(|inner| at.saturating_add(inner)), tid));
                    }
                }
                Some(_) => {}
            }
        }
        None
    }

    /// A type without typedefs and qualifiers.
    fn plain(&self, mut tid: u32) -> Option<&TypeVariant> {
        for _ in 0..MAX_DEPTH {
            let it = self.0.get().get(&tid)?;
            tid = match it {
                TypeVariant::Typedef(it) => *it.tid(),
                TypeVariant::Const(it) => *it.tid(),
                TypeVariant::Volatile(it) => *it.tid(),
                TypeVariant::Restrict(it) => *it.tid(),
                TypeVariant::TypeTag(it) => *it.tid(),
                _ => return Some(it),
            };
        }
        None
    }

    fn size(&self, of: &TypeVariant, depth: usize) -> Option<u64> {
        let depth = depth.checked_sub(1)?;
        let bytes = |size: usize| u64::try_from(size).ok();
        match of {
            TypeVariant::Ptr(_) => Some(8),
            TypeVariant::Int(it) => bytes(*it.size()),
            TypeVariant::Enum(it) => bytes(*it.size()),
            TypeVariant::Enum64(it) => bytes(*it.size()),
            TypeVariant::Float(it) => bytes(*it.size()),
            TypeVariant::Struct(it) => bytes(*it.size()),
            TypeVariant::Union(it) => bytes(*it.size()),
            TypeVariant::Array(it) => {
                let element = self.size(self.plain(*it.element_tid())?, depth)?;
                element.checked_mul(u64::from(*it.element_count()))
            }
            _ => None,
        }
    }

    fn no_member(&self, of: &TypeVariant, place: &str, name: &str) -> LayoutError {
        /// As many as a message can show.
        const MANY: usize = 24;
        let named: Vec<_> = members(of)
            .into_iter()
            .flatten()
            .filter_map(btfparse::Member::name)
            .collect();
        let near = match named.len() {
            0 => String::new(),
            1..=MANY => format!(", expected one of {}", named.join(", ")),
            _ => {
                let close = |it: &&String| it.contains(name) || name.contains(it.as_str());
                let close: Vec<_> = named.iter().filter(close).take(MANY).cloned().collect();
                match close.is_empty() {
                    true => String::new(),
                    false => format!(" (near it: {})", close.join(", ")),
                }
            }
        };
        LayoutError::NoMember {
            place: place.to_owned(),
            member: name.to_owned(),
            near,
        }
    }
}

fn members(of: &TypeVariant) -> Option<&[btfparse::Member]> {
    match of {
        TypeVariant::Struct(it) => Some(it.member_list()),
        TypeVariant::Union(it) => Some(it.member_list()),
        _ => None,
    }
}

struct Bytes<'a>(&'a [u8]);

impl Readable for Bytes<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> btfparse::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self
            .0
            .get(start..)
            .and_then(|rest| rest.get(..buffer.len()));
        let cut = || btfparse::Error::new(btfparse::ErrorKind::EOF, "it is cut short");
        buffer.copy_from_slice(found.ok_or_else(cut)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
