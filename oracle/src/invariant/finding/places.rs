//! Places in the kernel that a signature names.

use super::{Presence, Resolver};
use crate::invariant::evidence::{Code, Facts, spec};
use crate::trace::{Event, Trace};
use unwindlab_abi::plan::EventSource;

/// The word for an instruction in user mode.
pub(super) const USER: &str = "user";

/// The word for an instruction in the finding's window.
pub(super) const WINDOW: &str = "window";

/// Places in the kernel that a signature names.
pub(super) struct Places<'a, K: ?Sized> {
    pub kernel: &'a K,
    /// What of the finding is in the kernel's code.
    presence: &'a dyn Fn() -> &'a Presence,
    /// Every instruction counts as one of the window, whatever the code is.
    anywhere: bool,
}

impl<'a, K: Resolver + ?Sized> Places<'a, K> {
    /// Places in `kernel`; what of the finding is in its code is asked for when it is needed.
    pub fn new(kernel: &'a K, presence: &'a dyn Fn() -> &'a Presence) -> Self {
        Self {
            kernel,
            presence,
            anywhere: false,
        }
    }

    /// Places of which those in a window are not looked at.
    pub fn anywhere(kernel: &'a K, presence: &'a dyn Fn() -> &'a Presence) -> Self {
        Self {
            anywhere: true,
            ..Self::new(kernel, presence)
        }
    }

    /// What of the finding is in the kernel's code.
    pub fn presence(&self) -> &Presence {
        (self.presence)()
    }

    /// The kernel instruction that an NMI hit which wrote a sample, by its chain: it comes behind the
    /// stub of the NMI. An NMI with two handlers writes more samples than injections are logged.
    fn interrupted(&self, event: &Event) -> Option<u64> {
        let mut chain = event.kernel_chain().iter();
        let is_stub = |ip: &u64| {
            self.kernel
                .function(*ip)
                .is_some_and(|it| Code::is_nmi(&it))
        };
        chain.find(|ip| is_stub(ip))?;
        chain.next().copied()
    }

    /// Whether each place may be any, because nothing is known of the kernel.
    pub(super) fn are_open(&self) -> bool {
        self.anywhere && self.kernel.is_unknown()
    }

    /// Whether the NMI that wrote a sample hit one of these functions, or the window if they name it.
    pub(super) fn hit(&self, facts: &Facts<'_>, event: &Event, names: &[String]) -> bool {
        if self.are_open() {
            return true;
        }
        let ip = facts.instruction(event).or_else(|| self.interrupted(event));
        let ip = ip.or_else(|| overflowed(facts.trace, event));
        ip.is_some_and(|ip| self.within(ip, names))
    }

    /// Whether an instruction is in one of these functions, or in the window if they name it.
    pub(super) fn within(&self, ip: u64, names: &[String]) -> bool {
        let window = || self.anywhere || (self.presence)().contains(ip);
        let function = self.kernel.function(ip);
        function.is_some_and(|name| names.contains(&name))
            || (names.iter().any(|name| name == WINDOW) && window())
    }

    /// Whether the place at the end of a report's first line (`function+0x12/0x34`) is in one of
    /// these functions, or in the window.
    pub(super) fn reported_within(&self, line: &str, names: &[String]) -> bool {
        let place = line.split_whitespace().next_back().unwrap_or_default();
        let parse = || {
            let (name, rest) = place.split_once("+0x")?;
            let (offset, _) = rest.split_once('/')?;
            let offset = u64::from_str_radix(offset, 16).ok()?;
            self.kernel.address(name)?.checked_add(offset)
        };
        parse().is_some_and(|ip| self.within(ip, names))
    }
}

/// The kernel instruction at which a counter of the CPU overflowed: perf's chain begins there.
fn overflowed(trace: &Trace, event: &Event) -> Option<u64> {
    let counts = matches!(spec(trace, event)?.source, EventSource::Hardware(_));
    event.kernel_chain().first().filter(|_| counts).copied()
}
