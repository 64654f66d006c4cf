//! Where a path begins.

use serde::{Deserialize, Serialize};

/// Where a path begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beginning {
    /// At an instruction of the kernel.
    Kernel {
        /// The instruction.
        address: u64,
        /// Which arrival within the iteration, from 1.
        hit: u64,
        /// Whether the arrival of any task counts, instead of the workload thread's only.
        any_task: bool,
    },
    /// At an instruction of the workload, by a symbol that the agent announces.
    User {
        /// Symbol name.
        symbol: String,
        /// Bytes from its start.
        offset: u64,
    },
    /// At the last user instruction before the n-th time that an iteration of the workload enters
    /// the kernel.
    Entry {
        /// n, from 1.
        number: u32,
    },
}

/// What is made where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Made {
    /// Nothing.
    Nothing,
    /// The request's NMI.
    Nmi,
    /// An interrupt.
    Irq {
        /// Its vector.
        vector: u8,
    },
}

/// `LOCAL_TIMER_VECTOR` (arch/x86/include/asm/irq_vectors.h).
pub const TICK: u8 = 0xec;

impl Made {
    /// Whether it is the interrupt of a tick.
    #[must_use]
    pub const fn is_tick(self) -> bool {
        matches!(self, Self::Irq { vector: TICK })
    }

    /// Whether it is an interrupt.
    #[must_use]
    pub const fn is_irq(self) -> bool {
        matches!(self, Self::Irq { .. })
    }
}
