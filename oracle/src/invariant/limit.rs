//! Judging that ends early, in the middle of an invariant.
//!
//! A kernel that is wrong decides how many records a trace has, and how many of them are of one entry. So what invariants
//! compare records with takes a [`step`]; now and then a step asks whether to go on. Where not, it unwinds to [`attempt`],
//! as a cancelled query does in rust-analyzer. Nobody else catches it, and no panic is reported.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// Says whether to go on judging. It is asked some thousand times a second, and may look at the time.
pub type GoOn = Rc<dyn Fn() -> bool>;

/// So many steps are made before it is asked again: less than a millisecond.
const EVERY: u64 = 1 << 14;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static GO_ON: RefCell<Option<GoOn>> = const { RefCell::new(None) };
}

/// What a step unwinds with.
struct Ended;

/// Forgets whom to ask, however the work ends.
struct Forget;

impl Drop for Forget {
    fn drop(&mut self) {
        GO_ON.set(None);
    }
}

/// One thing was looked at or compared.
#[inline]
pub(super) fn step() {
    let steps = STEPS.get().wrapping_add(1);
    STEPS.set(steps);
    if steps.is_multiple_of(EVERY) {
        ask();
    }
}

#[cold]
fn ask() {
    let go_on = GO_ON.with_borrow(Option::clone);
    if go_on.is_some_and(|it| !it()) {
        resume_unwind(Box::new(Ended));
    }
}

/// Does this work as long as it may go on; false where it was ended before its end.
pub(super) fn attempt(go_on: &GoOn, work: impl FnOnce()) -> bool {
    let _forget = Forget;
    GO_ON.set(Some(Rc::clone(go_on)));
    // What is derived from a trace is kept only once it is whole (`OnceCell`), and what was found so far is true.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => true,
        Err(why) if why.is::<Ended>() => false,
        Err(why) => resume_unwind(why),
    }
}

/// How many steps this thread makes in some work.
#[cfg(test)]
pub(super) fn steps(work: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get().wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn work_without_end_is_ended() {
        let asked = Rc::new(Cell::new(0));
        let counted = Rc::clone(&asked);
        let go_on: GoOn = Rc::new(move || {
            counted.set(counted.get() + 1);
            counted.get() < 3
        });
        let whole = attempt(&go_on, || {
            loop {
                step();
            }
        });
        assert!(!whole);
        assert_eq!(asked.get(), 3);
        // Nobody is asked behind it.
        let steps = steps(|| (0..=EVERY).for_each(|_| step()));
        assert_eq!((steps, asked.get()), (EVERY + 1, 3));
    }

    #[test]
    fn what_comes_to_its_end_is_whole() {
        let go_on: GoOn = Rc::new(|| true);
        assert!(attempt(&go_on, || (0..=EVERY).for_each(|_| step())));
    }

    #[test]
    fn a_panic_stays_one() {
        let go_on: GoOn = Rc::new(|| true);
        let work = || attempt(&go_on, || resume_unwind(Box::new("a panic")));
        let why = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert_eq!(why.downcast_ref(), Some(&"a panic"));
    }
}
