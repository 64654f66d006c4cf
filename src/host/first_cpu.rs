//! Keeping guests off the outer machine's first CPU.
//!
//! QEMU's TCG writes to the first CPU's flags from the thread of any CPU, without a lock: FXRSTOR, XRSTOR, FRSTOR and
//! FLDENV call `cpu_clear_ignne()` (`target/i386/tcg/system/fpu_helper.c`, as of 10.0.13), which reads
//! `first_cpu->hflags2`, clears a bit and writes it back. The same word holds what the first CPU's SVM goes by: nested
//! paging, GIF, masked interrupts. Where the first CPU changes one of these meanwhile, it comes back. Seen: nested paging
//! stays on behind a #VMEXIT, so that the outer kernel's next instruction fetch is a second one, which writes the outer
//! kernel's state over the guest's (`-d in_asm` logs two `vmexit` and no `vmrun` between them). An interrupt between
//! #VMEXIT and VMLOAD, where GIF must be 0, would find the guest's GS base: the outer kernel faults until its stack ends.
//!
//! A first CPU that never executes VMRUN has nothing in that word that could be lost.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs of an outer machine: two vCPUs must be able to run at the same time, on neither of them the first.
pub const OUTER_CPUS: u32 = 3;

/// The first CPU, in the kernel's numbering and QEMU's.
const FIRST: usize = 0;

/// Keeps this thread, and all that it starts from now on, off the first CPU. A machine of one CPU stays as it is: with
/// nobody else's thread there is no such write.
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
