//! Members that were asked for before. To parse all types of a kernel takes longer than to start a saved machine, and a command asks
//! for one or two members.

use std::collections::BTreeMap;

use super::Member;
use crate::cache::{Cache, CacheError};

/// The fact in the cache. What [`Types::member`](super::Types::member) answers is part of its name: a change there needs another one.
const NOTE: &str = "members-1";
/// Of how many kernels they are known; those go first that were asked about longest ago.
const MOST: usize = 64;

/// By kernel, the latest at the end.
type Noted = Vec<(String, BTreeMap<String, Member>)>;

/// The member of a struct of this kernel (its content hash), if it was asked for before.
///
/// # Errors
/// [`CacheError`].
pub fn noted(
    kernel: &str,
    structure: &str,
    path: &str,
    cache: &Cache,
) -> Result<Option<Member>, CacheError> {
    let all = cache.note::<Noted>(NOTE)?.map(|note| note.fact);
    let of_kernel = { all.iter().flatten() }.find(|(it, _)| it == kernel);
    let member = of_kernel.and_then(|(_, members)| members.get(&name(structure, path)));
    Ok(member.copied())
}

/// Notes it.
///
/// # Errors
/// [`CacheError`].
pub fn note(
    kernel: &str,
    structure: &str,
    path: &str,
    member: Member,
    cache: &Cache,
) -> Result<(), CacheError> {
    let mut all = cache
        .note::<Noted>(NOTE)?
        .map_or_else(Vec::new, |it| it.fact);
    let at = all.iter().position(|(it, _)| it == kernel);
    let mut members = at.map_or_else(BTreeMap::new, |at| all.remove(at).1);
    members.insert(name(structure, path), member);
    all.push((kernel.to_owned(), members));
    all.drain(..all.len().saturating_sub(MOST));
    cache.set_note(NOTE, &all)
}

fn name(structure: &str, path: &str) -> String {
    format!("{structure}.{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_known_of_the_kernel_that_it_was_noted_of() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let member = |offset| Member { offset, size: 4 };
        let known = |kernel: &str, path: &str| noted(kernel, "task_struct", path, &cache).unwrap();
        assert_eq!(known("a", "pid"), None);
        note("a", "task_struct", "pid", member(1), &cache).unwrap();
        note("a", "task_struct", "unwind_info.id", member(2), &cache).unwrap();
        note("b", "task_struct", "pid", member(3), &cache).unwrap();
        assert_eq!(known("a", "pid"), Some(member(1)));
        assert_eq!(known("a", "unwind_info.id"), Some(member(2)));
        assert_eq!(known("b", "pid"), Some(member(3)));
        assert_eq!(known("b", "unwind_info.id"), None);
        for number in 0..MOST - 1 {
            let kernel = number.to_string();
            note(&kernel, "task_struct", "pid", member(4), &cache).unwrap();
        }
        assert_eq!(known("a", "pid"), None, "it goes first");
        assert_eq!(known("b", "pid"), Some(member(3)));
    }
}
