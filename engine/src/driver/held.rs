//! vCPUs that stand still until they are released, whatever they stopped for meanwhile.

use std::collections::BTreeMap;

use unwindlab_vmm::Run;

/// The held vCPUs, and how each is to run once it is released. `None`: what it stopped for is
/// still being dealt with.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<u8, Option<Run>>);

impl Held {
    /// Holds a vCPU. One that is held already stays as it is.
    pub(super) fn hold(&mut self, vcpu: u8, run: Option<Run>) {
        self.0.entry(vcpu).or_insert(run);
    }

    /// Notes how a vCPU is to run later; false where it is not held, and may run now.
    pub(super) fn keep(&mut self, vcpu: u8, run: Run) -> bool {
        match self.0.get_mut(&vcpu) {
            Some(later) => {
                *later = Some(run);
                true
            }
            None => false,
        }
    }

    /// Holds a vCPU no longer. Returns how it is to run, if that is up to the caller.
    pub(super) fn release(&mut self, vcpu: u8) -> Option<Run> {
        self.0.remove(&vcpu).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_vcpu_runs_later_as_it_was_to_run() {
        let mut held = Held::default();
        assert!(!held.keep(1, Run::Continue));
        held.hold(1, None);
        assert!(held.keep(1, Run::Step));
        held.hold(1, Some(Run::Continue));
        assert_eq!(held.release(1), Some(Run::Step));
        assert_eq!(held.release(1), None);
        assert!(!held.keep(1, Run::Continue));
        held.hold(1, None);
        assert_eq!(held.release(1), None);
    }
}
