//! Where an arrival is: at an instruction, or behind an access to a field of a task.

use unwindlab_vmm::{DataAccess, DataBreakpoint};

/// Where an arrival is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before the instruction at this address.
    Code(u64),
    /// Behind an instruction that accesses this field of the armed task. Only that task's own
    /// arrivals count.
    Field(TaskField),
}

/// A field of a `task_struct`, and the accesses to it that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskField {
    offset: u64,
    bytes: u8,
    access: DataAccess,
}

impl TaskField {
    /// The field; `None` for what a CPU cannot watch. A `task_struct` lies on a multiple of a cache
    /// line (`task_struct_cachep` in kernel/fork.c), so the offset alone tells.
    pub fn new(offset: u64, bytes: u8, access: DataAccess) -> Option<Self> {
        DataBreakpoint::new(offset, bytes, access)?;
        Some(Self {
            offset,
            bytes,
            access,
        })
    }

    /// The breakpoint on this field of a task.
    pub fn of(self, task: u64) -> Option<DataBreakpoint> {
        DataBreakpoint::new(task.wrapping_add(self.offset), self.bytes, self.access)
    }
}
