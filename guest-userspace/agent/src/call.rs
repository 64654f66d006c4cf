//! A system call that a leaf makes in its iteration, prepared beforehand.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Number, arguments and answer; `chain.s` uses them by their offsets.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// Negative: no call.
    number: AtomicI64,
    arguments: [AtomicU64; 5],
    answer: AtomicI64,
}

impl Call {
    /// Byte offset of the answer.
    pub const ANSWER: usize = std::mem::offset_of!(Call, answer);

    /// No call.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            number: AtomicI64::new(-1),
            arguments: [const { AtomicU64::new(0) }; 5],
            answer: AtomicI64::new(0),
        }
    }

    /// Sets the call. Must not be called while the leaf runs.
    pub fn set(&self, number: i64, arguments: &[u64]) {
        for (at, word) in self.arguments.iter().enumerate() {
            let value = arguments.get(at).copied().unwrap_or(0);
            word.store(value, Ordering::Relaxed);
        }
        self.answer.store(0, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }

    /// Removes the call.
    pub fn unset(&self) {
        self.set(-1, &[]);
    }

    /// Number and arguments, for tests that make the call themselves.
    #[cfg(test)]
    pub(crate) fn set_to(&self) -> [u64; 6] {
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|at| {
            let word = self.arguments.get(at);
            word.map_or(0, |it: &AtomicU64| it.load(Ordering::Relaxed))
        });
        let number = self.number.load(Ordering::Relaxed).cast_unsigned();
        [number, a, b, c, d, e]
    }

    /// Notes an answer as the leaf does, for the same tests.
    #[cfg(test)]
    pub(crate) fn answered(&self, answer: i64) {
        let raw = match answer {
            -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(1)),
            answer => answer,
        };
        self.answer.store(raw, Ordering::Relaxed);
    }

    /// What the last call returned, as the kernel says it.
    #[must_use]
    pub fn raw_answer(&self) -> i64 {
        self.answer.load(Ordering::Acquire)
    }

    /// The result of the last call.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn answer(&self) -> Result<u64, rustix::io::Errno> {
        let answer = self.answer.load(Ordering::Acquire);
        match i32::try_from(answer) {
            Ok(negative @ ..0) => Err(rustix::io::Errno::from_raw_os_error(-negative)),
            _ => Ok(answer.cast_unsigned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_errors() {
        let call = Call::none();
        call.set(39, &[1, 2]);
        assert_eq!(call.answer(), Ok(0));
        call.answer.store(-22, Ordering::Relaxed);
        assert_eq!(call.answer(), Err(rustix::io::Errno::INVAL));
        call.answer.store(0x7fff_0000_1000, Ordering::Relaxed);
        assert_eq!(call.answer(), Ok(0x7fff_0000_1000));
        call.unset();
        assert_eq!(call.number.load(Ordering::Relaxed), -1);
    }
}
