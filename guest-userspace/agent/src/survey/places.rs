//! Lines of a trace, gathered into places.

use std::collections::{BTreeMap, BTreeSet};

use unwindlab_abi::SurveyedPlace;
use unwindlab_abi::survey::{MAX_PLACES, context};

use super::events::Events;

/// One line of `trace`: `COMM-PID [CPU] FLAGS TIME: WHAT`.
#[derive(Debug, PartialEq, Eq)]
struct Line<'l> {
    pid: u32,
    contexts: u8,
    what: &'l str,
}

impl<'l> Line<'l> {
    /// Reads a line. The name of a task is ours, without brackets.
    fn read(line: &'l str) -> Option<Self> {
        let (task, rest) = line.split_once("] ")?;
        let (task, _cpu) = task.rsplit_once('[')?;
        let (_comm, pid) = task.trim_end().rsplit_once('-')?;
        let (flags, rest) = rest.trim_start().split_once(' ')?;
        let (_time, what) = rest.split_once(": ")?;
        Some(Self {
            pid: pid.parse().ok()?,
            contexts: contexts(flags),
            what: what.trim(),
        })
    }
}

/// The contexts of a line's flags (`trace_print_lat_fmt`, kernel/trace/trace_output.c): interrupts
/// or softirqs off, need-resched, hard and soft interrupts, depth of preemption off, of migration
/// off.
fn contexts(flags: &str) -> u8 {
    let mut flags = flags.chars();
    let (off, _resched) = (flags.next(), flags.next());
    let mut all = match off {
        Some('d') => context::IRQS_OFF,
        Some('D') => context::IRQS_OFF | context::PREEMPTION_OFF,
        Some('b') => context::PREEMPTION_OFF,
        _ => 0,
    };
    all |= match flags.next() {
        Some('Z' | 'z') => context::NMI,
        Some('H') => context::HARDIRQ | context::SOFTIRQ,
        Some('h') => context::HARDIRQ,
        Some('s') => context::SOFTIRQ,
        _ => 0,
    };
    if flags.next().is_some_and(|depth| depth != '.') {
        all |= context::PREEMPTION_OFF;
    }
    if all == 0 { context::TASK } else { all }
}

/// What the threads passed so far.
#[derive(Debug)]
pub(super) struct Places {
    /// The threads of the workload, which wait at the gate at first.
    threads: BTreeSet<u32>,
    /// Those of them that are behind it and have not ended.
    running: BTreeSet<u32>,
    /// Where tracepoints are looked for, the kernel's events; otherwise functions count.
    events: Option<Events>,
    found: Vec<SurveyedPlace>,
    /// By system and name: the place in `found`.
    index: BTreeMap<(Option<String>, String), usize>,
}

impl Places {
    pub(super) fn new(threads: &[u32], events: Option<Events>) -> Self {
        Self {
            threads: threads.iter().copied().collect(),
            running: BTreeSet::new(),
            events,
            found: Vec::new(),
            index: BTreeMap::new(),
        }
    }

    /// Takes a line.
    pub(super) fn line(&mut self, line: &str) {
        let Some(line) = Line::read(line) else {
            return;
        };
        // `exit` and `exit_group`.
        let call = line.what.strip_prefix("sys_enter: NR ");
        let ends = call.is_some_and(|call| matches!(call.split(' ').next(), Some("60" | "231")));
        if ends {
            self.running.remove(&line.pid);
        } else if call.is_some() {
            self.running.insert(line.pid);
        }
        if !self.threads.contains(&line.pid) || self.running.contains(&line.pid) {
            self.place(&line);
        }
        if line.what.starts_with("sys_exit: ") {
            self.running.insert(line.pid);
        }
    }

    fn place(&mut self, line: &Line<'_>) {
        let names: Vec<(Option<String>, String)> = match &self.events {
            Some(events) => {
                let shown = events.shown(line.what).into_iter();
                shown
                    .map(|(it, name)| (Some(it.to_owned()), name))
                    .collect()
            }
            // `FUNCTION <-CALLER`, and the module's name in brackets behind a function of one.
            None => match line.what.split_once(" <-") {
                Some((function, _)) => {
                    let name = function.split(' ').next().unwrap_or(function);
                    vec![(None, name.to_owned())]
                }
                None => Vec::new(),
            },
        };
        for key in names {
            let next = self.found.len();
            if next >= MAX_PLACES && !self.index.contains_key(&key) {
                continue;
            }
            let at = *self.index.entry(key.clone()).or_insert(next);
            if at == next {
                let (system, name) = key;
                self.found.push(SurveyedPlace {
                    system,
                    name,
                    hits: 0,
                    contexts: 0,
                });
            }
            if let Some(place) = self.found.get_mut(at) {
                place.hits += 1;
                place.contexts |= line.contexts;
            }
        }
    }

    /// The places, in the order of their first passing.
    pub(super) fn found(self) -> Vec<SurveyedPlace> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: function
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
      syscalls-0-34      [000] d..2.    12.345678: before_the_gate <-schedule
      syscalls-0-34      [000] .....    12.345679: sys_exit: NR 202 = 0
      syscalls-0-34      [000] .....    12.345680: sys_enter: NR 110 (0, 0, 0, 0, 0, 0)
      syscalls-0-34      [000] .....    12.345681: __x64_sys_getppid <-x64_sys_call
      syscalls-0-34      [000] d.h1.    12.345682: ktime_get <-tick_irq_enter
      syscalls-0-34      [001] d.Z3.    12.345683: nmi_handle.part.0 <-default_do_nmi
      syscalls-0-34      [000] b.s..    12.345684: ktime_get <-run_timers
          <idle>-0       [000] .....    12.345685: idle_one <-do_idle
           child-35      [000] .....    12.345686: fuse_read [fuse] <-vfs_read
      syscalls-0-34      [000] .....    12.345687: sys_enter: NR 60 (0, 0, 0, 0, 0, 0)
      syscalls-0-34      [000] .....    12.345688: do_exit <-__x64_sys_exit
";

    fn found(events: Option<Events>) -> Vec<(String, u64, u8)> {
        let mut places = Places::new(&[34], events);
        TRACE.lines().for_each(|line| places.line(line));
        let found = places.found().into_iter();
        found
            .map(|it| {
                let system = it.system.map(|it| it + ":").unwrap_or_default();
                (system + &it.name, it.hits, it.contexts)
            })
            .collect()
    }

    #[test]
    fn functions_count_from_the_gate_to_the_exit() {
        use context::{HARDIRQ, IRQS_OFF, NMI, PREEMPTION_OFF, SOFTIRQ, TASK};
        let ktime = IRQS_OFF | HARDIRQ | PREEMPTION_OFF | SOFTIRQ;
        let expected = [
            ("__x64_sys_getppid", 1, TASK),
            ("ktime_get", 2, ktime),
            ("nmi_handle.part.0", 1, IRQS_OFF | NMI | PREEMPTION_OFF),
            ("idle_one", 1, TASK),
            ("fuse_read", 1, TASK),
        ];
        let expected = expected.map(|(name, hits, at)| (name.to_owned(), hits, at));
        assert_eq!(found(None), expected);
    }

    #[test]
    fn tracepoints_have_their_system() {
        let mut events = Events::default();
        events.add("raw_syscalls", "sys_enter");
        events.add("raw_syscalls", "sys_exit");
        let expected = [("raw_syscalls:sys_enter".to_owned(), 1, context::TASK)];
        assert_eq!(found(Some(events)), expected);
    }

    #[test]
    fn what_is_no_line_is_none() {
        for text in ["", "#", "] ", "x-1 [0] d", "x-y [000] d..2. 1.0: a <-b"] {
            assert_eq!(Line::read(text), None, "{text}");
        }
    }
}
