//! One injection of the arrival kind, and how far it is.

use std::collections::BTreeMap;

use super::path::Path;
use super::{Due, Place, Standing, ThreadIteration};
use crate::plan::{ArrivalPlan, TaskFilter};
use unwindlab_oracle::trace::recording::Point;
use unwindlab_vmm::DataBreakpoint;

/// One injection of the arrival kind.
#[derive(Debug)]
pub struct Arrival {
    /// Index of the injection in the scenario.
    pub spec: u32,
    place: Place,
    plan: ArrivalPlan,
    /// How often it may be made by now: what it is to follow was made so often.
    released: u64,
    /// Arrivals at which all is made.
    done: u64,
    /// A sweep that has come to the end of what is executed.
    swept: bool,
    /// Where a sweep has been.
    path: Path,
    /// TaskFilter thread; `None` for any task.
    armed: BTreeMap<Option<u32>, Armed>,
    point: Point,
}

/// A thread, or any task, whose arrival would count.
#[derive(Debug)]
pub(super) struct Armed {
    /// The task; `None` until a task of any kind has begun.
    task: Option<u64>,
    iteration: Option<u64>,
    hits: u64,
    injected: u32,
    /// Instruction boundaries to pass without an injection, the place's own included; known when
    /// the place is reached.
    pass: Option<u64>,
    way: Way,
    /// The boundary that a sweep is to inject at; the place is 0.
    boundary: u64,
    /// The stack pointer at the place.
    top: u64,
    /// Where the next injection of this arrival is due; empty until the place was reached.
    next: Vec<u64>,
}

/// How it comes to its boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It is not on its way, or there.
    None,
    /// It runs to an anchor, of which it is not known whether the iteration comes by.
    ToAnchor,
    /// It steps.
    BySteps,
    /// It was let go before: the iteration says nothing any more.
    Lost,
}

impl Armed {
    pub(super) fn go_on_at(&mut self, next: Vec<u64>) {
        self.way = Way::None;
        self.next = next;
    }

    /// The iteration comes by the anchor.
    pub(super) fn come_to_anchor(&mut self) {
        self.way = Way::BySteps;
    }

    /// As before the arrival that counts, number `hit`.
    fn begin_again(&mut self, hit: u64) {
        self.hits = hit.saturating_sub(1);
        self.injected = 0;
        self.pass = None;
        self.way = Way::None;
        self.next.clear();
    }

    /// The place was reached, and the arrival is not over.
    const fn begun(&self) -> bool {
        self.pass.is_some()
    }
}

impl Arrival {
    /// One that has not begun. `follows`: it waits for another injection.
    pub fn new(spec: u32, place: Place, plan: &ArrivalPlan, follows: bool) -> Self {
        Self {
            spec,
            place,
            plan: plan.clone(),
            released: if follows { 0 } else { u64::MAX },
            done: 0,
            swept: false,
            path: Path::default(),
            armed: BTreeMap::new(),
            point: Point {
                spec,
                ..Point::default()
            },
        }
    }

    /// All its injections are made.
    pub fn complete(&self) -> bool {
        self.plan.optional || self.swept || self.done >= self.plan.repeat
    }

    pub(super) fn addresses(&self) -> Vec<u64> {
        let mut places = Vec::new();
        for armed in self.armed.values() {
            places.extend_from_slice(&armed.next);
            if let Place::Code(address) = self.place
                && (armed.next.is_empty() || self.is_burst())
            {
                places.push(address);
            }
        }
        places
    }

    /// The breakpoints on data that it waits for.
    pub(super) fn data(&self) -> Vec<DataBreakpoint> {
        let Place::Field(field) = self.place else {
            return Vec::new();
        };
        let armed = self.armed.values();
        armed.filter_map(|it| field.of(it.task?)).collect()
    }

    /// Whether a vCPU stands at the place itself; of a field, at that of this task.
    fn is_at(&self, at: &Standing, task: Option<u64>) -> bool {
        match self.place {
            Place::Code(address) => at.data.is_none() && address == at.pc,
            Place::Field(field) => at.data.is_some() && at.data == task.and_then(|it| field.of(it)),
        }
    }

    const fn is_burst(&self) -> bool {
        self.plan.times > 1
    }

    /// Arrivals that are over or under way.
    fn begun(&self) -> u64 {
        self.done + self.armed.values().filter(|it| it.begun()).count() as u64
    }

    /// Whether one more arrival may begin.
    fn open(&self) -> bool {
        !self.swept && self.begun() < self.plan.repeat.min(self.released)
    }

    pub(super) fn release(&mut self) {
        self.released = self.released.saturating_add(1);
    }

    pub(super) fn arm(&mut self, thread: u32, task: u64, iteration: u64) {
        let meant = match self.plan.by {
            TaskFilter::Workload => true,
            TaskFilter::Thread(only) => only == thread,
            TaskFilter::Any => false,
        };
        if meant && iteration >= self.plan.first && self.open() {
            self.armed
                .entry(Some(thread))
                .or_insert_with(|| armed(Some(task), Some(iteration)));
        }
    }

    /// Lets any task arrive, where any is meant.
    pub(super) fn open_to_all(&mut self) {
        if self.plan.by == TaskFilter::Any && self.open() {
            self.armed.entry(None).or_insert_with(|| armed(None, None));
        }
    }

    /// A thread is out of the iteration that it was armed for. One that never got to the place
    /// counts for nothing, and the next one makes up for it; one that got there, and was still led
    /// on to its boundary when it was over, is the end of the sweep. One that did not come by
    /// its anchor says nothing, nor does one whose boundary came in another task, or that was let go.
    pub(super) fn leave(&mut self, thread: u32) {
        if let Some(armed) = self.armed.remove(&Some(thread)) {
            match armed.way {
                Way::ToAnchor => self.path.go_astray(),
                Way::BySteps => self.swept |= self.plan.sweep,
                Way::None | Way::Lost => {}
            }
            self.note_passes(armed.hits);
        }
    }

    /// It is led on no longer, before it came to its boundary.
    pub(super) fn lose_way(&mut self, thread: Option<u32>) {
        if let Some(armed) = self.armed.get_mut(&thread) {
            if armed.way == Way::ToAnchor {
                self.path.go_astray();
            }
            armed.way = Way::Lost;
        }
        // No mark ends an iteration of any task: it begins again.
        if thread.is_none() {
            self.armed.remove(&None);
            self.open_to_all();
        }
    }

    fn note_passes(&mut self, hits: u64) {
        let point = &mut self.point;
        point.least = match point.iterations {
            0 => hits,
            _ => point.least.min(hits),
        };
        point.most = point.most.max(hits);
        point.iterations += 1;
    }

    pub(super) fn armed_mut(&mut self, thread: Option<u32>) -> Option<&mut Armed> {
        self.armed.get_mut(&thread)
    }

    /// What is due for this injection where a vCPU stands; nothing that would lead it on where
    /// another one already does (`led`). `alone`: no other one waits for anything.
    pub(super) fn hit(&mut self, at: &Standing, led: bool, alone: bool) -> Option<Due> {
        let burst = self.is_burst();
        let here = |armed: &Armed| {
            let at_place = self.is_at(at, armed.task);
            armed.task.is_none_or(|task| task == at.task)
                && match armed.next.as_slice() {
                    // On the way to its boundary it may come by the place again.
                    [] => at_place && armed.way == Way::None,
                    // A burst that was broken off passes its place again before its next boundary.
                    next => at.data.is_none() && next.contains(&at.pc) || burst && at_place,
                }
        };
        let thread = self
            .armed
            .iter()
            .find_map(|(&thread, a)| here(a).then_some(thread));
        let Some(thread) = thread else {
            let others = { self.armed.values() }.any(|armed| self.is_at(at, armed.task));
            self.point.others += u64::from(others);
            return None;
        };
        let elsewhere = self.plan.vcpu.is_some_and(|only| only != at.vcpu);
        if elsewhere || at.in_nmi != self.plan.in_nmi {
            self.point.others += 1;
            return None;
        }
        let (begun, open) = (self.begun(), self.open());
        let (plan, armed) = (&self.plan, self.armed.get_mut(&thread)?);
        // One that was broken off has begun, though it begins again.
        let may_begin = open || armed.begun();
        let by = ThreadIteration {
            thread,
            iteration: armed.iteration,
        };
        if !armed.next.is_empty() && !armed.next.contains(&at.pc) {
            armed.begin_again(plan.hit);
        }
        if armed.next.is_empty() && !armed.begun() {
            armed.hits += 1;
            if armed.hits < plan.hit {
                return None;
            }
        }
        let again = armed.injected + 1 < plan.times;
        let pass = armed.pass.unwrap_or(if plan.sweep { begun } else { 0 });
        let steps = pass > 0 || (again && !at.leads_on);
        if !may_begin || led && (steps || again) {
            // Other threads' arrivals are all that are to be, or another one leads this vCPU on: this arrival is
            // not taken, the next one may be.
            armed.hits = armed.hits.saturating_sub(1);
            self.point.others += 1;
            return None;
        }
        if !armed.begun() {
            (armed.boundary, armed.top) = (pass, at.stack_pointer);
        }
        armed.pass = Some(0);
        armed.task = Some(at.task);
        if steps {
            // Without an iteration, no mark would end a way that does not come by. What follows another
            // injection has no later iteration that makes up for one that does not.
            let follows = self.released != u64::MAX;
            let by_anchor = plan.sweep && !burst && !follows && thread.is_some() && alone;
            let way = self.path.way_to(pass, armed.top).filter(|_| by_anchor);
            let (anchor, steps) = way.map_or((None, pass.max(1)), |(it, steps)| (Some(it), steps));
            armed.way = match anchor {
                Some(_) => Way::ToAnchor,
                None => Way::BySteps,
            };
            return Some(Due::StepFirst {
                spec: self.spec,
                by,
                anchor,
                steps,
            });
        }
        if plan.sweep {
            let depth = armed.top.wrapping_sub(at.stack_pointer);
            self.path.note(armed.boundary, at.pc, depth);
        }
        armed.injected += 1;
        if !again {
            let hits = armed.hits;
            self.armed.remove(&thread);
            self.done += 1;
            self.note_passes(hits);
            self.drop_late();
            self.open_to_all();
        }
        Some(Due::Inject {
            spec: self.spec,
            by,
            again,
        })
    }

    /// Nobody else needs to come where nothing more may begin.
    fn drop_late(&mut self) {
        if !self.open() {
            self.armed.retain(|_, armed| armed.begun());
        }
    }

    pub(super) fn point(&self) -> Point {
        let mut point = self.point.clone();
        for armed in self.armed.values() {
            point.unfinished = point.unfinished.max(armed.hits);
        }
        point.hit = self.plan.hit;
        point.swept = self.swept;
        point
    }
}

const fn armed(task: Option<u64>, iteration: Option<u64>) -> Armed {
    Armed {
        task,
        iteration,
        hits: 0,
        injected: 0,
        pass: None,
        way: Way::None,
        boundary: 0,
        top: 0,
        next: Vec::new(),
    }
}
