//! What a trace proves, derived once for all invariants.
//!
//! Each file uses only those above it in this list:
//!
//! - [`order`]: which of two records came first; [`role`]: what an event is there for
//! - [`tasks`]: which task a record speaks of; [`losses`]: when rings lost records
//! - [`injections`]: which injection raised which sample
//! - [`syscalls`]: the system calls of every task; [`returns`]: its returns to user mode, by the
//!   witness
//! - [`facts`]: requests and answers, joined by cookie, and all of the above
//! - [`exits`], [`stacks`], [`entries`], [`unanswered`], [`contexts`]: what follows about exits,
//!   user stacks, kernel entries, missing answers and chains that were cut; [`recorded`]: what perf alone does not show
//! - [`lab`]: what the log of the kernel's lab client proves
//! - [`names`]: the kernel's symbols, where they are known
//! - `pairs`: how many pairs of requests and answers are compared
//! - `handed_over`: samples of events that a task switch may have given to the next task
//! - [`views`]: the trace as each client of tracefs sees it; [`beside`]: which record of perf says the same

mod beside;
mod contexts;
mod entries;
mod exits;
mod facts;
mod handed_over;
mod injections;
pub(super) mod lab;
mod losses;
mod names;
mod order;
mod pairs;
mod recorded;
mod replaced;
mod returns;
mod role;
mod sampled;
mod stacks;
mod syscalls;
mod tasks;
mod unanswered;
pub(super) mod views;
#[cfg(test)]
mod views_tests;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

pub(super) use beside::Beside;
pub(super) use contexts::{context_limit, has_no_room, is_cut};
pub(super) use entries::Code;
use entries::OneEntry;
pub use entries::{EntryCode, KernelText};
pub(super) use entries::{Origin, Relation, Together};
pub(super) use facts::{Answer, Exchange, Facts, Request};
use lab::Lab;
pub(super) use losses::loses;
use names::KernelNames;
pub(super) use order::{NESTING, before, earlier, later};
pub(super) use pairs::Pairs;
pub(super) use role::{
    Role, announced_spec, asks_of_cpu, asks_of_process, has_side_band_bit, kernel_limit, receivers,
    role, spec, spec_number, spec_role,
};
pub(super) use stacks::{
    at_leaf, cut_without_need, described_by_sections, difference, expected, flaw, flaw_of, in_part,
};
pub(super) use syscalls::Syscalls;
pub(super) use tasks::Task;
pub(crate) use views::INSTANCE;
use views::View;

use crate::trace::canonical::KernelResolver;
use crate::trace::{Event, Trace};

/// A trace and what it proves. Everything is derived when it is first needed, and once.
#[derive(Debug)]
pub struct Evidence<'t> {
    trace: &'t Trace,
    names: KernelNames<'t>,
    code: Option<&'t EntryCode<'t>>,
    facts: OnceCell<Facts<'t>>,
    one_entry: OnceCell<Vec<OneEntry<'t>>>,
    lab: OnceCell<Option<Lab<'t>>>,
    given: OnceCell<Option<BTreeSet<u64>>>,
    views: OnceCell<Vec<View>>,
    all_clients: OnceCell<Option<View>>,
    /// Of a client of tracefs: what it sees.
    view: Option<&'t View>,
}

impl<'t> Evidence<'t> {
    /// Of a trace. Derives nothing yet.
    #[must_use]
    pub fn new(trace: &'t Trace) -> Self {
        Self {
            trace,
            names: KernelNames::default(),
            code: None,
            facts: OnceCell::new(),
            one_entry: OnceCell::new(),
            lab: OnceCell::new(),
            given: OnceCell::new(),
            views: OnceCell::new(),
            all_clients: OnceCell::new(),
            view: None,
        }
    }

    /// The same, with names for the addresses of the kernel that ran.
    #[must_use]
    pub fn named(mut self, resolve: KernelResolver<'t>) -> Self {
        self.names = KernelNames::new(resolve);
        self
    }

    /// The function that holds a kernel address, and the offset in it; `None` without symbols.
    pub(super) fn place(&self, address: u64) -> Option<(String, u64)> {
        self.names.place(address)
    }

    /// The functions in the kernel's part of a sample's chain, as far as the kernel's symbols are known.
    fn functions(&self, sample: &Event) -> impl Iterator<Item = String> {
        let chain = sample.kernel_chain().iter();
        let named = chain.filter_map(|&address| self.place(address));
        named.map(|(function, _)| function)
    }

    /// Whether a kernel address is in no function of the kernel's image, as generated code is.
    pub(super) fn is_in_no_function(&self, address: u64) -> bool {
        self.names.none_covers(address)
    }

    /// The same, with the entry code of the kernel that wrote the trace: kernel chains then say in
    /// which entry a sample was made.
    #[must_use]
    pub const fn knowing(mut self, code: &'t EntryCode<'t>) -> Self {
        self.code = Some(code);
        self
    }

    /// The trace itself.
    #[must_use]
    pub const fn trace(&self) -> &'t Trace {
        self.trace
    }

    /// The instruction that the NMI of a record interrupted, where the trace shows it.
    #[must_use]
    pub fn interrupted(&self, event: &Event) -> Option<u64> {
        self.facts().instruction(event)
    }

    /// What perf's records prove.
    pub(super) fn facts(&self) -> &Facts<'t> {
        self.facts.get_or_init(|| Facts::new(self.trace, self.code))
    }

    /// The requests that are known to be of one entry, at least two in each group.
    pub(super) fn one_entry(&self) -> &[OneEntry<'t>] {
        self.one_entry.get_or_init(|| self.facts().one_entry())
    }

    /// Whether a client of the lab client or of tracefs got this cookie, so that its first request need not
    /// be perf's.
    pub(super) fn given(&self, cookie: u64) -> bool {
        let elsewhere = || views::given(self.trace);
        let given = self.given.get_or_init(elsewhere);
        self.lab().is_some_and(|lab| lab.given.contains(&cookie))
            || given.as_ref().is_none_or(|given| given.contains(&cookie))
    }

    /// The trace as each client of tracefs sees it.
    pub(super) fn views(&self) -> &[View] {
        self.views.get_or_init(|| views::of_each(self.trace))
    }

    /// The trace with the requests and stacks of perf and all clients of tracefs; `None` without one.
    pub(super) fn all_clients(&self) -> Option<&View> {
        let view = || views::of_all(self.trace);
        self.all_clients.get_or_init(view).as_ref()
    }

    /// What a view proves. The lab client's log says there what that client asked of a task, and is not judged again.
    pub(super) fn of_view<'v>(&'v self, view: &'v View) -> Evidence<'v> {
        Evidence {
            names: self.names,
            code: self.code,
            view: Some(view),
            lab: OnceCell::from(None),
            ..Evidence::new(&view.trace)
        }
    }

    /// An exchange, cut up by the registrations of a client of tracefs: each has its own answer.
    pub(super) fn by_registration<'e>(
        &self,
        exchange: &'e Exchange<'t>,
    ) -> Vec<Cow<'e, Exchange<'t>>> {
        if self.view.is_none() {
            return vec![Cow::Borrowed(exchange)];
        }
        let mut parts: BTreeMap<Option<u32>, Exchange<'t>> = BTreeMap::new();
        for request in &exchange.requests {
            let part = parts
                .entry(spec_number(self.trace, request.event))
                .or_default();
            part.requests.push(*request);
        }
        for answer in &exchange.answers {
            let part = parts
                .entry(spec_number(self.trace, answer.event))
                .or_default();
            part.answers.push(*answer);
        }
        parts.into_values().map(Cow::Owned).collect()
    }

    /// What [`Self::may_be_cancelled`] says, in words.
    pub(super) const MAY_BE_CANCELLED: &'static str = "the instance may have been cancelled, its tracing ended, or its buffer \
                                                       full, before the entry was over";

    /// Whether the client of a request may have been cancelled, its tracing may have ended, or its buffer may have been full,
    /// before the request's entry was over.
    pub(super) fn may_be_cancelled(&self, request: &Request<'t>) -> bool {
        let from =
            spec_number(self.trace, request.event).and_then(|spec| self.view?.cancelled.get(&spec));
        let Some(&from) = from else {
            return false;
        };
        let facts = self.facts();
        let later = request.task.map(|task| facts.after(task, request.event));
        let over = { later.into_iter().flatten() }
            .take_while(|it| it.time.is_none_or(|time| time < from))
            .any(|it| facts.separated(request.event, it).is_some());
        !over
    }

    /// Why what a client of tracefs has written before a record may be lost.
    pub(super) fn lost_before(&self, event: &Event) -> Option<&'static str> {
        let full_from = self.view.and_then(|it| it.full_from);
        let is_behind = full_from
            .zip(event.time)
            .is_some_and(|(from, at)| at > from);
        is_behind
            .then_some("the instance's buffer was full before, so that the request may be lost")
    }

    /// What the lab client's log proves; `None` for a trial without one.
    pub(super) fn lab(&self) -> Option<&Lab<'t>> {
        self.lab.get_or_init(|| Lab::of(self.facts())).as_ref()
    }
}
