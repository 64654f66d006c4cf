//! Keeps guests off the outer machine's first CPU.
//!
//! QEMU's TCG writes to the first CPU's flags from the thread of any CPU, without a lock: FXRSTOR,
//! XRSTOR, FRSTOR and FLDENV call `cpu_clear_ignne()` (`target/i386/tcg/system/fpu_helper.c`, as of
//! 10.0.13), which reads `first_cpu->hflags2`, clears a bit and writes it back. The same word holds
//! the state of the first CPU's SVM: nested paging, GIF, masked interrupts. A change that the first
//! CPU makes meanwhile is lost.
//!
//! Observed: nested paging stays on after a #VMEXIT, so that the outer kernel's next instruction
//! fetch causes a second one, which writes the outer kernel's state over the guest's (`-d in_asm`
//! logs two `vmexit` and no `vmrun` between them). Or GIF is 1 between #VMEXIT and VMLOAD: an
//! interrupt there finds the guest's GS base, and the outer kernel faults until its stack ends.
//!
//! A first CPU that never executes VMRUN has nothing in that word that could be lost.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs of an outer machine: two vCPUs must be able to run at the same time without the first CPU.
pub const OUTER_CPUS: u32 = 3;

/// The first CPU, in the kernel's numbering and QEMU's.
const FIRST: usize = 0;

/// Keeps this thread, and all that it starts from now on, off the first CPU. A machine of one CPU
/// stays as it is: no other CPU's thread exists that could write.
///
/// # Errors
/// When the kernel refuses.
pub fn leave() -> io::Result<()> {
    let mut others: CpuSet = sched_getaffinity(None)?;
    others.unset(FIRST);
    if others.count() > 0 {
        sched_setaffinity(None, &others)?;
    }
    Ok(())
}
