//! What was asked of a kernel's types before. To parse all of them takes longer than to start a saved machine, and a command asks
//! for one or two.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Member;
use crate::cache::{Cache, CacheError};

/// Of how many kernels they are known; those go first that were asked about longest ago.
const MOST: usize = 64;

/// A kind of answers, which is one fact in the cache. What [`Types`](super::Types) answers is part of its name: a change there needs
/// another one.
#[derive(Debug, Clone, Copy)]
pub struct Kind<T>(&'static str, PhantomData<T>);

/// Of [`Types::member`](super::Types::member), by struct and path with a point between them.
pub const MEMBERS: Kind<Member> = Kind("members-1", PhantomData);
/// Of [`Types::function`](super::Types::function), by name.
pub const FUNCTIONS: Kind<u32> = Kind("functions-1", PhantomData);

/// By kernel, the latest at the end.
type Noted<T> = Vec<(String, BTreeMap<String, T>)>;

impl<T: Copy + Serialize + DeserializeOwned> Kind<T> {
    /// The answer of this kernel (its content hash), if it was asked for before.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn noted(self, kernel: &str, key: &str, cache: &Cache) -> Result<Option<T>, CacheError> {
        let all = cache.note::<Noted<T>>(self.0)?.map(|note| note.fact);
        let of_kernel = { all.iter().flatten() }.find(|(it, _)| it == kernel);
        Ok(of_kernel.and_then(|(_, answers)| answers.get(key)).copied())
    }

    /// Notes it.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn note(self, kernel: &str, key: &str, answer: T, cache: &Cache) -> Result<(), CacheError> {
        let all = cache.note::<Noted<T>>(self.0)?;
        let mut all = all.map_or_else(Vec::new, |it| it.fact);
        let at = all.iter().position(|(it, _)| it == kernel);
        let mut answers = at.map_or_else(BTreeMap::new, |at| all.remove(at).1);
        answers.insert(key.to_owned(), answer);
        all.push((kernel.to_owned(), answers));
        all.drain(..all.len().saturating_sub(MOST));
        cache.set_note(self.0, &all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_known_of_the_kernel_that_it_was_noted_of() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let member = |offset| Member { offset, size: 4 };
        let note = |kernel: &str, path: &str, offset| {
            MEMBERS.note(kernel, path, member(offset), &cache).unwrap();
        };
        let known = |kernel: &str, path: &str| MEMBERS.noted(kernel, path, &cache).unwrap();
        assert_eq!(known("a", "task_struct.pid"), None);
        note("a", "task_struct.pid", 1);
        note("a", "task_struct.unwind_info.id", 2);
        note("b", "task_struct.pid", 3);
        assert_eq!(known("a", "task_struct.pid"), Some(member(1)));
        assert_eq!(known("a", "task_struct.unwind_info.id"), Some(member(2)));
        assert_eq!(known("b", "task_struct.pid"), Some(member(3)));
        assert_eq!(known("b", "task_struct.unwind_info.id"), None);
        assert_eq!(
            FUNCTIONS.noted("a", "task_struct.pid", &cache).unwrap(),
            None
        );
        for number in 0..MOST - 1 {
            note(&number.to_string(), "task_struct.pid", 4);
        }
        assert_eq!(known("a", "task_struct.pid"), None, "it goes first");
        assert_eq!(known("b", "task_struct.pid"), Some(member(3)));
    }
}
