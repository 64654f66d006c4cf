//! Translations that the CPU remembers: behind a restore they are those of the checkpoint's page tables, though CR3 is the same.

use super::failure::{Failure, Outcome, same};
use super::lab::{Lab, guest, machine, next_stop, resume, run};
use crate::{Machine, Run, Stop};

super::checks! {
    Machines:
        a_restore_forgets_translations
        a_restore_forgets_global_translations;
}

/// Two pages of RAM, and what is in them.
const PAGES: [(u64, u64); 2] = [(0x30_0000, 0xa), (0x30_1000, 0xb)];
/// Page tables of the guest's own, for the address 1 << 39: three levels below the top.
const TABLES: [u64; 3] = [0x31_0000, 0x31_1000, 0x31_2000];
/// The top table; see `boot/mod.rs`.
const TOP: u64 = 0x9000;
/// Page table entry: present, writable.
const PRESENT: u64 = 3;
/// Page table entry: it stays when CR3 is loaded.
const GLOBAL: u64 = 1 << 8;

// Reads by one address, rings; reads again, rings; changes the page table, reads again, rings, and rests.
guest!(remaps:
    "mov rax, cr4"
    "or rax, 0x80"
    "mov cr4, rax"
    "mov rbx, 0x8000000000"
    "mov rax, [rbx]"
    "out 0xe0, eax"
    "mov rax, [rbx]"
    "out 0xe1, eax"
    "xor qword ptr [0x312000], 0x1000"
    "invlpg [rbx]"
    "mov rax, [rbx]"
    "out 0xe2, eax"
    "2: hlt"
    "jmp 2b"
);

fn rings(stop: &Stop, expected: (u16, u32)) -> Outcome {
    let (port, value) = expected;
    let size = 4;
    same!(*stop, Stop::Port { port, size, value });
    Ok(())
}

fn remapping(flags: u64) -> Result<Machine, Failure> {
    let mut machine = machine(1, remaps())?;
    let memory = machine.memory();
    for (page, value) in PAGES {
        memory.store_u64(page, value)?;
    }
    let [pointers, directory, table] = TABLES;
    memory.store_u64(TOP + 8, pointers | PRESENT)?;
    memory.store_u64(pointers, directory | PRESENT)?;
    memory.store_u64(directory, table | PRESENT)?;
    let [(first, _), _] = PAGES;
    memory.store_u64(table, first | PRESENT | flags)?;
    resume(&mut machine, Run::Continue)?;
    Ok(machine)
}

fn restores(flags: u64) -> Outcome {
    let mut machine = remapping(flags)?;
    rings(&next_stop(&mut machine)?, (0xe0, 0xa))?;
    let checkpoint = machine.checkpoint()?;
    // More often than a page stays in the log of written ones, for what leaves it makes KVM forget translations too.
    for _ in 0..12 {
        rings(&run(&mut machine, Run::Continue)?, (0xe1, 0xa))?;
        rings(&run(&mut machine, Run::Continue)?, (0xe2, 0xb))?;
        machine.restore(&checkpoint)?;
    }
    Ok(())
}

fn a_restore_forgets_translations(_: &Lab) -> Outcome {
    restores(0)
}

fn a_restore_forgets_global_translations(_: &Lab) -> Outcome {
    restores(GLOBAL)
}
