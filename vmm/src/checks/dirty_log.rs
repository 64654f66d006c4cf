//! The log of written pages, where there are more than a CPU that keeps it itself holds at once: Intel's has room for 512 (SDM vol. 3,
//! "Page-Modification Logging").

use super::failure::{Outcome, holds, same};
use super::lab::{Lab, guest, machine_with, next_stop, resume};
use crate::{Pmu, Run, Stop};

super::checks! {
    Machines:
        every_written_page_is_logged;
}

/// The pages that the guest writes.
const FIRST: u64 = 0x40_0000;
const COUNT: u64 = 1500;
const PAGE: u64 = 4096;

// Writes a number that is new each time into the first word of each page; rings when it is done.
guest!(writes_pages:
    "xor ebx, ebx"
    "2: mov edi, 0x400000"
    "mov ecx, 1500"
    "3: inc rbx"
    "mov [rdi], rbx"
    "add rdi, 0x1000"
    "dec ecx"
    "jnz 3b"
    "out 0xe0, eax"
    "jmp 2b"
);

fn every_written_page_is_logged(_: &Lab) -> Outcome {
    let mut machine = machine_with(16, Pmu::None, 1, writes_pages())?;
    let checkpoint = machine.checkpoint()?;
    // More often than a page that does not change stays in the log.
    for round in 0..10 {
        resume(&mut machine, Run::Continue)?;
        let stop = next_stop(&mut machine)?;
        holds!(matches!(stop, Stop::Port { .. }), "{stop:x?}");
        let changed = machine.changed(&checkpoint)?;
        let written = changed.iter().filter(|(at, _)| *at >= FIRST).copied();
        let expected = (0..COUNT).map(|page| (FIRST + page * PAGE, page + 1));
        let missing: Vec<_> = {
            let written: Vec<_> = written.collect();
            expected.filter(|it| !written.contains(it)).collect()
        };
        let few = missing.get(..3).unwrap_or(&missing);
        holds!(
            missing.is_empty(),
            "round {round}: {} missing: {few:x?}",
            missing.len()
        );
        machine.restore(&checkpoint)?;
        same!(machine.differences(&checkpoint)?, [""; 0], "round {round}");
    }
    Ok(())
}
