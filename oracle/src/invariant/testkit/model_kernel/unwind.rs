//! Deferred unwinding itself: the request, the walk, the callbacks, the reset and the exit flush.

use super::*;

impl Model {
    /// `unwind_deferred_request`: the cookie, and what it returns.
    pub(super) fn request(&mut self, cpu: usize, client: usize) -> (u64, i32) {
        if self.current(cpu).id == 0 {
            let id = self.cookie(cpu);
            self.current(cpu).id = id;
        }
        let silent = self.has(Bug::NmiWithoutSelfIpi);
        let late = self.has(Bug::AnswersLate);
        let task = self.current(cpu);
        let stale = late && task.requested[client] && task.went_on > 0;
        self.stale += usize::from(stale);
        let task = self.current(cpu);
        if task.requested[client] {
            return (task.id, 1);
        }
        task.requested[client] = true;
        if !task.pending {
            task.pending = true;
            task.went_on = 0;
            task.self_ipi = !silent && matches!(task.at, At::User | At::Answered | At::Reset);
        }
        (task.id, 0)
    }

    /// `get_cookie`.
    pub(super) fn cookie(&mut self, cpu: usize) -> u64 {
        let births = self.current(cpu).births;
        self.current(cpu).births += 1;
        let mut count = self.counters[cpu] + 2;
        if self.has(Bug::ConstantCount) {
            count = 3;
        } else if self.has(Bug::PerTaskCounter) {
            count = 2 * births + 3;
        } else if !self.has(Bug::CounterNotStored) {
            self.counters[cpu] = count;
        }
        let cpu = if self.has(Bug::CookieWithoutCpu) {
            0
        } else {
            u64::from(number(cpu))
        };
        (u64::from(count) << 32) | (cpu + 1)
    }

    /// `process_unwind_deferred` up to the end of the walk.
    pub(super) fn walk(&mut self, cpu: usize) {
        let (clear, fail) = (
            self.has(Bug::ClearBeforeUnwind),
            self.has(Bug::ErrorWithoutCallback) && self.below(4) == 0,
        );
        let wrong = self.has(Bug::AnswersLate) || self.has(Bug::NmiWithoutSelfIpi);
        let late = wrong && self.current(cpu).went_on > 0;
        let call = self.current(cpu).via == Via::Syscall;
        self.late += usize::from(late);
        self.late_in_call += usize::from(late && call);
        let task = self.current(cpu);
        task.pending = false;
        let (cookie, asked) = (task.id, task.requested);
        if clear {
            (task.id, task.requested) = (0, [false; 2]);
        }
        if task.cache.is_none() {
            let mut frames = vec![task.ip];
            frames.extend(vec![0x2000; task.thread as usize + 2]);
            frames.push(0x3000);
            task.cache = Some(frames);
        }
        task.at = if fail {
            At::Answered
        } else {
            At::Walked { cookie, asked }
        };
    }

    /// The callbacks of the clients that had asked.
    pub(super) fn callback(&mut self, cpu: usize, cookie: u64, asked: [bool; 2]) {
        let everyone = self.has(Bug::OutputToEveryone);
        let task = self.current(cpu);
        let due = [PERF, LAB].map(|client| asked[client] && !task.completed[client]);
        for (completed, due) in task.completed.iter_mut().zip(due) {
            *completed |= due;
        }
        let (tid, frames) = (task.tid, task.cache.clone().unwrap_or_default());
        if due[LAB] {
            let log = self.log.on(u16::try_from(cpu).unwrap());
            log.call(tid - 1000, lab::client(0), cookie, &frames);
        }
        if !due[PERF] {
            return;
        }
        let on = match self.has(Bug::AnswersElsewhere) {
            true => number(1 - cpu),
            false => number(cpu),
        };
        self.log.perf.deferred(on, tid, cookie, &frames);
        if self.has(Bug::CopiesDiffer) {
            let first = frames.get(..1).unwrap_or_default();
            self.log.perf.deferred_to(1, on, tid, cookie, first);
        }
        if everyone {
            self.log
                .perf
                .deferred_to(1, number(cpu), tid, cookie, &frames);
        }
    }

    /// The walk, the callback and the reset, and the task stays where it is.
    pub(super) fn answer_in(&mut self, cpu: usize, via: Via) {
        self.walk(cpu);
        if let At::Walked { cookie, asked } = self.current(cpu).at {
            self.callback(cpu, cookie, asked);
        }
        self.reset(cpu);
        self.current(cpu).at = At::Body(via);
    }

    /// `unwind_reset_info`.
    pub(super) fn reset(&mut self, cpu: usize) {
        let keeps_id = self.has(Bug::ResetKeepsId);
        let keeps_cache = self.has(Bug::ResetKeepsCache);
        let keeps_completed = self.has(Bug::ResetKeepsCompleted);
        let ignores_pending = self.has(Bug::ResetIgnoresPending);
        let task = self.current(cpu);
        if task.requested == [false; 2] && task.cache.is_none() || task.pending && !ignores_pending
        {
            return;
        }
        task.requested = [false; 2];
        task.pending = false;
        if !keeps_completed {
            task.completed = [false; 2];
        }
        if self.has(Bug::RequestInReset) && self.below(4) == 0 {
            self.arrivals += 1;
            let hit = kernel(TEXT + 4 * self.arrivals);
            self.sample(cpu, hit);
        }
        let task = self.current(cpu);
        if !keeps_id {
            task.id = 0;
        }
        if !keeps_cache {
            task.cache = None;
        }
    }

    /// From the exit record to the end: `unwind_deferred_task_exit`, `exit_mm`.
    pub(super) fn exit(&mut self, cpu: usize) {
        let flush = !self.has(Bug::NoExitFlush);
        if self.current(cpu).pending {
            self.walk(cpu);
            if !flush {
                self.current(cpu).cache = Some(Vec::new());
            }
            if let At::Walked { cookie, asked } = self.current(cpu).at {
                self.callback(cpu, cookie, asked);
            }
        }
        self.current(cpu).at = At::Dead;
    }
}
