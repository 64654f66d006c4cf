//! Who asks: probes, exceptions, NMIs and the lab client.

use super::*;

impl Model {
    /// A probe that the task comes to.
    pub(super) fn probe(&mut self, cpu: usize) {
        let task = self.current(cpu);
        let (hook, probe) = match task.at {
            At::Body(via) => (Source::LabHook, Source::ProbeIn(via)),
            At::Answered | At::Reset => (Source::LabHookLate, Source::ProbeLate(task.via)),
            _ => return,
        };
        match self.shown.lab && self.below(2) == 0 {
            true => self.ask_by_lab(cpu, hook),
            false => self.ask(cpu, probe),
        }
    }

    /// A request of the lab client.
    pub(super) fn ask_by_lab(&mut self, cpu: usize, source: Source) {
        if !self.sources.contains(&source) {
            return;
        }
        self.arrivals += 1;
        let task = self.current(cpu).clone();
        let (cookie, ret) = self.request(cpu, LAB);
        let text = TEXT + 4 * self.arrivals;
        let log = self.log.on(u16::try_from(cpu).unwrap());
        if !matches!(source, Source::LabHook | Source::LabHookLate) {
            let ip = match task.at {
                At::User => task.ip,
                _ => text,
            };
            log.nmi_at(ip);
        }
        match task.at {
            At::User => log.with(|flags| flags.user = true),
            At::Answered => log.with(|flags| flags.irqs_off = true),
            At::Reset => log.with(|flags| {
                flags.irqs_off = true;
                flags.leaving = true;
            }),
            _ => log,
        };
        log.ask(task.tid - 1000, lab::client(0), ret, cookie);
        if task.at == At::User && !self.current(cpu).self_ipi {
            self.returns(number(cpu), task.tid);
        }
    }

    /// A request that the task makes itself, in task context or in the handler of an exception.
    pub(super) fn ask(&mut self, cpu: usize, source: Source) {
        if !self.sources.contains(&source) {
            return;
        }
        let (on, task) = (number(cpu), self.current(cpu).clone());
        let [probe, switch, fault, uprobe, breakpoint] = self.specs;
        let (spec, frames) = match source {
            Source::Switch => (switch, outer(task.via, Far::Body)),
            Source::PageFault => (fault, Vec::new()),
            Source::Uprobe => (uprobe, outer(task.via, Far::Work)),
            Source::Breakpoint => (breakpoint, Vec::new()),
            Source::ProbeLate(via) => (probe, outer(via, Far::Late)),
            _ => (probe, outer(task.via, Far::Body)),
        };
        if self.is_refused(cpu) {
            return;
        }
        let (cookie, _) = self.request(cpu, PERF);
        self.log.perf.asks_in(spec, on, task.tid, cookie, &frames);
    }

    /// An injection that a thread armed, made once or twice at its arrival, or one at a rate.
    pub(super) fn nmi(&mut self, cpu: usize) {
        if self.shown.lab && self.below(2) == 0 {
            let source = match self.current(cpu).at {
                At::User => Source::LabNmiInUser,
                _ => Source::LabNmi,
            };
            return self.ask_by_lab(cpu, source);
        }
        let armed = self.below(2) == 0;
        let task = self.current(cpu).clone();
        self.arrivals += 1;
        let mut hit = match task.at {
            At::User => user(task.ip),
            _ => kernel(TEXT + 4 * self.arrivals),
        };
        if armed {
            hit = hit.iteration(task.thread, task.iteration);
        }
        let in_user = task.at == At::User;
        let waits = in_user && self.below(self.one_finds_an_interrupt) == 0;
        if waits {
            hit = hit.interrupt_waits();
        }
        let source = match task.at {
            At::User => Source::NmiInUser,
            _ => Source::NmiIn(task.via),
        };
        if !self.sources.contains(&source) {
            return;
        }
        for _ in 0..if armed && !in_user { 2 } else { 1 } {
            self.sample(cpu, hit);
        }
        if waits {
            // The CPU takes it when the handler returns, with the self-IPI or without.
            self.current(cpu).self_ipi = false;
            self.enter(cpu, Via::Tick);
        }
    }

    /// An NMI: one injection, one sample.
    pub(super) fn sample(&mut self, cpu: usize, hit: Hit) {
        let on = number(cpu);
        let &mut Task {
            tid,
            at,
            ip,
            requested,
            ..
        } = self.current(cpu);
        if at == At::Dead {
            if self.shown.injections {
                self.log.perf.inject_kernel_only(on, tid, hit);
            }
            return;
        }
        if self.is_refused(cpu) || (requested[PERF] && self.has(Bug::OnlyFirstDeferred)) {
            if self.shown.injections {
                self.log.perf.inject_inline(on, tid, hit, &[ip]);
            }
        } else {
            let (cookie, _) = self.request(cpu, PERF);
            let task = self.current(cpu);
            let frames = match task.at {
                At::User => Vec::new(),
                _ => outer(task.via, task.far()),
            };
            // What is late was interrupted in the outer function itself, the exit work in its own.
            let frames = match task.far() {
                Far::Late => frames.get(1..).unwrap_or_default(),
                _ => &frames,
            };
            if self.has(Bug::SkipsSamples) && self.below(4) == 0 {
                return self.log.perf.inject_unseen(on, hit);
            }
            match self.shown.injections {
                true => self.log.perf.inject_in(on, tid, cookie, hit, frames),
                false => self.log.perf.nmi_in(on, tid, cookie, hit, frames),
            };
        }
        if at == At::User {
            self.returns(on, tid);
        }
    }

    pub(super) fn is_refused(&mut self, cpu: usize) -> bool {
        let exiting = matches!(self.current(cpu).at, At::Exiting { .. } | At::Dead);
        exiting && !self.has(Bug::ExitingNotRefused)
    }
}
