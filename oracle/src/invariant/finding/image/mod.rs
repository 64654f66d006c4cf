//! What a finding says of the kernel's code: the window between two instructions in which a request
//! must fall, and the instructions without which a kernel does not have the bug.
//!
//! Both are looked for in the image at hand, by decoding the functions. What is not found there
//! matches nothing.

mod anchor;
mod function;
mod orc;
mod values;

use std::collections::BTreeSet;

use serde::Deserialize;

use super::Resolver;
use anchor::Anchor;
use function::Function;
use orc::{Hint, Orc};
use values::{Base, Values};

/// Instructions of a function, from one to another.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    /// The functions that it can be in; each that has both anchors has one.
    #[serde(rename = "in")]
    functions: Vec<String>,
    /// The window begins behind this instruction; without it, where the function begins.
    after: Option<Anchor>,
    /// Whether what begins the window may come again in it.
    #[serde(default)]
    again: bool,
    /// The last instruction of the window: an NMI before it executes is still in the window.
    through: Anchor,
}

/// Bytes of a direct call. The kernel patches one over an indirect call whose target it knows.
const DIRECT_CALL: u64 = 5;

/// A window as it was found in a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundWindow {
    /// The function.
    pub function: String,
    /// Addresses of its instructions.
    pub instructions: BTreeSet<u64>,
    /// Where its calls return to.
    pub returns: BTreeSet<u64>,
}

/// What a function of a kernel with the bug has and has not.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Code {
    #[serde(rename = "in")]
    function: String,
    /// Instructions that can follow one another in this order.
    #[serde(default)]
    path: Vec<Anchor>,
    /// What the kernel's unwinder is told about an instruction of the function.
    unwinder: Option<Hint>,
    /// Instructions that are not in the function, or, with `between`, not on the way from the first
    /// of the path to the last.
    #[serde(default)]
    lacks: Vec<Anchor>,
    /// Functions that are called on the way are those of the path, and no others.
    #[serde(default)]
    no_other_call: bool,
    /// See `lacks`.
    #[serde(default)]
    between: bool,
}

/// Where the fields are that anchors name, found in this image.
#[derive(Debug, Clone, Copy, Default)]
struct Fields {
    /// Offset of `unwind_info.unwind_mask` in a task.
    mask: Option<i64>,
    values: Values,
}

/// A kernel's code, as anchors need it.
pub(super) struct Image<'a, K: ?Sized> {
    kernel: &'a K,
    fields: Fields,
}

impl<'a, K: Resolver + ?Sized> Image<'a, K> {
    /// Finds the fields: the mask is what `unwind_deferred_request()` exchanges in the current task,
    /// and a client's bit is what `unwind_deferred_cancel()` sets to -1.
    pub fn new(kernel: &'a K) -> Self {
        let mut fields = Fields::default();
        fields.values.current_task = kernel.current_task();
        fields.values.no_return = kernel.address("__stack_chk_fail");
        let mut image = Self { kernel, fields };
        image.fields.mask = image.mask();
        image.fields.values.work_bit = image.work_bit();
        image
    }

    fn function(&self, name: &str) -> Option<Function> {
        let (start, code) = self.kernel.code(name)?;
        let text = |address, length| self.kernel.text(address, length);
        Function::decode(start, &code, &self.fields.values, &text)
    }

    fn mask(&self) -> Option<i64> {
        let function = self.function("unwind_deferred_request")?;
        let exchanged = function.steps().filter_map(|(it, state)| {
            let place = state.place(it)?;
            let ours = it.has_lock_prefix() && anchor::is_long(it) && place.base == Base::Task;
            ours.then_some(place.offset)
        });
        let offsets: BTreeSet<i64> = exchanged.collect();
        offsets.first().copied().filter(|_| offsets.len() == 1)
    }

    fn work_bit(&self) -> Option<i64> {
        let function = self.function("unwind_deferred_cancel")?;
        let marked = function.steps().filter_map(|(it, state)| {
            let word = it.memory_size().size() == 4 && anchor::stores(it);
            let ones = anchor::stored(it, state).is_some_and(|n| n & 0xffff_ffff == 0xffff_ffff);
            let place = state.place(it).filter(|_| word && ones)?;
            Some(place.offset)
        });
        let offsets: BTreeSet<i64> = marked.collect();
        offsets.first().copied().filter(|_| offsets.len() == 1)
    }

    /// Addresses of the instructions of a function that are an anchor.
    fn find(&self, function: &Function, anchor: &Anchor) -> BTreeSet<u64> {
        let address = |name: &str| self.kernel.address(name);
        function
            .steps()
            .filter(|(it, state)| anchor.is(it, state, &self.fields, &address))
            .map(|(it, _)| it.ip())
            .collect()
    }

    /// The functions that have a window, and what it is in each.
    pub fn windows(&self, window: &Window) -> Vec<FoundWindow> {
        let names = window.functions.iter();
        let all = names.filter_map(|name| self.found(window, name));
        all.filter(|it| !it.instructions.is_empty()).collect()
    }

    fn found(&self, window: &Window, name: &str) -> Option<FoundWindow> {
        let function = self.function(name)?;
        let instructions = self.instructions(window, &function);
        let steps = function.steps().map(|(it, _)| it);
        let calls = steps.filter(|it| {
            it.mnemonic() == iced_x86::Mnemonic::Call && instructions.contains(&it.ip())
        });
        Some(FoundWindow {
            returns: calls
                .flat_map(|it| [it.next_ip(), it.ip() + DIRECT_CALL])
                .collect(),
            function: name.to_owned(),
            instructions,
        })
    }

    /// The instructions of a window in one function: those on the ways from the one to the other.
    fn instructions(&self, window: &Window, function: &Function) -> BTreeSet<u64> {
        let last = self.find(function, &window.through);
        let first = match &window.after {
            Some(anchor) => self.find(function, anchor),
            None => function.steps().map(|(it, _)| it.ip()).take(1).collect(),
        };
        let walls: BTreeSet<u64> = match window.again {
            true => last.clone(),
            false => first.union(&last).copied().collect(),
        };
        let behind: BTreeSet<u64> = first
            .iter()
            .flat_map(|ip| function.reach(*ip, &walls))
            .collect();
        let mut inside: BTreeSet<u64> = behind
            .into_iter()
            .filter(|ip| window.again || !first.contains(ip))
            .filter(|ip| last.contains(ip) || !function.reach(*ip, &walls).is_disjoint(&last))
            .collect();
        // Where the function begins nothing has happened before.
        if window.after.is_none() && !inside.is_empty() {
            inside.extend(first);
        }
        inside
    }

    /// Whether a kernel's function is as a finding says.
    pub fn has(&self, code: &Code) -> bool {
        let told = code
            .unwinder
            .is_none_or(|it| self.tells(it, &code.function));
        told && (code.path.is_empty() || self.has_path(code))
    }

    /// Whether the unwinder is told this about an instruction of a function.
    fn tells(&self, hint: Hint, function: &str) -> bool {
        let tells = || {
            let (start, code) = self.kernel.code(function)?;
            let end = start.checked_add(code.len() as u64)?;
            Some(Orc::find(self.kernel)?.tells(hint, start, end))
        };
        tells() == Some(true)
    }

    fn has_path(&self, code: &Code) -> bool {
        let Some(function) = self.function(&code.function) else {
            return false;
        };
        let places: Vec<BTreeSet<u64>> = code
            .path
            .iter()
            .map(|it| self.find(&function, it))
            .collect();
        let none = BTreeSet::new();
        let Some((first, rest)) = places.split_first() else {
            return false;
        };
        let mut at = first.clone();
        let mut way = at.clone();
        for next in rest {
            // Up to the first that is met: what follows it is the next leg's.
            let reached: BTreeSet<u64> =
                at.iter().flat_map(|ip| function.reach(*ip, next)).collect();
            way.extend(
                reached.iter().filter(|ip| {
                    next.contains(ip) || !function.reach(**ip, &none).is_disjoint(next)
                }),
            );
            at = reached.intersection(next).copied().collect();
        }
        let lacks = |anchor: &Anchor| {
            let found = self.find(&function, anchor);
            match code.between {
                true => found.is_disjoint(&way),
                false => found.is_empty(),
            }
        };
        let calls = || {
            let mut steps = function.steps().filter(|(it, _)| way.contains(&it.ip()));
            steps.all(|(it, _)| {
                let named = places.iter().any(|place| place.contains(&it.ip()));
                named || it.mnemonic() != iced_x86::Mnemonic::Call
            })
        };
        !at.is_empty() && code.lacks.iter().all(lacks) && (!code.no_other_call || calls())
    }
}

impl Window {
    /// What is wrong with it, if anything is.
    pub fn flaw(&self) -> Option<&'static str> {
        let none = self.functions.is_empty();
        none.then_some("its window names no function")
    }
}

impl Code {
    /// What is wrong with it, if anything is.
    pub fn flaw(&self) -> Option<&'static str> {
        let nothing = self.path.is_empty() && (self.unwinder.is_none() || !self.lacks.is_empty())
            || self.function.is_empty();
        nothing.then_some("what it says of the code names no instruction")
    }
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod values_tests;
