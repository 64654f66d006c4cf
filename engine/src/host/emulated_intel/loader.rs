//! The boot loader of the disk that Bochs boots, for it starts no kernel by itself: 512 bytes.
//!
//! The BIOS loads it to 0x7c00. By the BIOS it reads [`TABLE`], and what is listed there to any address below 4 GiB. It adds the
//! BIOS' map of the memory, and enters the kernel at its PVH entry point, in protected mode without paging (the boot protocol of
//! `Documentation/arch/x86/pvh.rst`, and Xen's `docs/misc/pvh.pandoc`).

use std::arch::global_asm;

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;
/// Where the table is in memory. On the disk it follows the loader.
pub(super) const TABLE: u16 = 0x8000;
/// Its sectors.
pub(super) const TABLE_SECTORS: u8 = 8;
/// The list in the table: for each part its first sector, its sectors and its address, a `u32` each. One without sectors ends it.
pub(super) const PARTS: usize = 0;
/// The kernel's entry point, a `u32`.
pub(super) const ENTRY: usize = 0x1fc;
/// What the kernel finds in EBX: `struct hvm_start_info`.
pub(super) const START_INFO: usize = 0x200;
/// In it: the number of entries of the map of the memory.
pub(super) const MAP_LENGTH: usize = START_INFO + 0x30;
/// The operand of LGDT; the table of segments behind it: none, code (8), data (0x10).
pub(super) const GDT_OPERAND: u16 = 0x3e0;
/// The map of the memory: `struct hvm_memmap_table_entry`.
pub(super) const MAP: usize = 0x400;
/// Most entries of the map.
pub(super) const MAP_ENTRIES: u8 = 40;
/// The kernel's command line.
pub(super) const CMDLINE: usize = 0x800;

/// The BIOS' packet for a read: size, sectors, where to (offset and segment), from which sector. And the disk's number.
const PACKET: u16 = 0x600;
const DISK: u16 = 0x610;
/// Where the BIOS reads to, before it is copied: it reaches no further than the first MiB.
const BUFFER: u32 = 0x1_0000;
/// Sectors of one read: 32 KiB.
const AT_ONCE: u8 = 64;

unsafe extern "C" {
    static unwindlab_loader_start: u8;
    static unwindlab_loader_end: u8;
}

/// The loader: one sector.
pub(super) fn code() -> &'static [u8] {
    let (start, end) = (
        &raw const unwindlab_loader_start,
        &raw const unwindlab_loader_end,
    );
    // SAFETY: the assembler places both symbols in one section, the second behind the first,
    // with initialised read-only bytes between them.
    unsafe { std::slice::from_raw_parts(start, end.byte_offset_from_unsigned(start)) }
}

global_asm!(
    ".pushsection .rodata.unwindlab_loader, \"a\", @progbits",
    ".globl unwindlab_loader_start, unwindlab_loader_end",
    ".code16",
    "unwindlab_loader_start:",
    "    cli",
    "    cld",
    "    xor ax, ax",
    "    mov ds, ax",
    "    mov es, ax",
    "    mov ss, ax",
    "    mov sp, 0x7c00",
    "    mov byte ptr [{disk}], dl",
    // The 21st line of addresses.
    "    in al, 0x92",
    "    or al, 2",
    "    out 0x92, al",
    // The table.
    "    mov dword ptr [{packet}], 0x00000010 + ({table_sectors} << 16)",
    "    mov dword ptr [{packet} + 4], {table}",
    "    mov dword ptr [{packet} + 8], 1",
    "    mov dword ptr [{packet} + 12], 0",
    "    call 60f",
    "    mov bp, {table} + {parts}",
    "20: cmp dword ptr [bp + 4], 0",
    "    je 30f",
    "    mov eax, dword ptr [bp]",
    "    mov dword ptr [{packet} + 8], eax",
    "    mov eax, {at_once}",
    "    cmp dword ptr [bp + 4], eax",
    "    jae 21f",
    "    mov eax, dword ptr [bp + 4]",
    "21: mov word ptr [{packet} + 2], ax",
    "    mov dword ptr [{packet} + 4], {buffer} << 12",
    "    push eax",
    "    call 60f",
    "    pop ecx",
    "    add dword ptr [bp], ecx",
    "    sub dword ptr [bp + 4], ecx",
    "    shl ecx, 7",
    "    mov edi, dword ptr [bp + 8]",
    "    mov esi, {buffer}",
    // To any address: the limit of the segments stays as protected mode left it. The BIOS may have changed it back.
    "    cli",
    "    lgdt [{table} + {gdt}]",
    "    mov eax, cr0",
    "    or al, 1",
    "    mov cr0, eax",
    "    mov bx, 0x10",
    "    mov ds, bx",
    "    mov es, bx",
    "    and al, 0xfe",
    "    mov cr0, eax",
    "    xor bx, bx",
    "    mov ds, bx",
    "    mov es, bx",
    // `addr32 rep movsd`.
    "    .byte 0xf3, 0x66, 0x67, 0xa5",
    "    sti",
    "    mov dword ptr [bp + 8], edi",
    "    cmp dword ptr [bp + 4], 0",
    "    jne 20b",
    "    add bp, 12",
    "    jmp 20b",
    // The map of the memory: the BIOS' entries have 20 bytes, the kernel's 24.
    "30: xor ebx, ebx",
    "    mov di, {table} + {map}",
    "31: mov eax, 0xe820",
    "    mov edx, 0x534d4150",
    "    mov ecx, 20",
    "    int 0x15",
    "    jc 32f",
    "    inc dword ptr [{table} + {map_length}]",
    "    add di, 24",
    "    cmp dword ptr [{table} + {map_length}], {map_entries}",
    "    jae 32f",
    "    test ebx, ebx",
    "    jnz 31b",
    "32: cli",
    "    lgdt [{table} + {gdt}]",
    "    mov eax, cr0",
    "    or al, 1",
    "    mov cr0, eax",
    // A far jump: `jmp 8:40f`, by its address behind 0x7c00.
    "    .byte 0x66, 0xea",
    "    .long 0x7c00 + 40f - unwindlab_loader_start",
    "    .word 8",
    // Reads what the packet says.
    "60: mov ah, 0x42",
    "    mov dl, byte ptr [{disk}]",
    "    mov si, {packet}",
    "    sti",
    "    int 0x13",
    "    jc 61f",
    "    ret",
    // A word on the serial line for who reads the console.
    "61: mov dx, 0x3f8",
    "    mov al, 'D'",
    "    out dx, al",
    "    mov al, 'i'",
    "    out dx, al",
    "    mov al, 's'",
    "    out dx, al",
    "    mov al, 'k'",
    "    out dx, al",
    "    mov al, '!'",
    "    out dx, al",
    "62: hlt",
    "    jmp 62b",
    ".code32",
    "40: mov eax, 0x10",
    "    mov ds, eax",
    "    mov es, eax",
    "    mov ss, eax",
    "    mov ebx, {table} + {start_info}",
    "    mov eax, dword ptr [{table} + {entry}]",
    "    jmp eax",
    ".org unwindlab_loader_start + 510",
    ".byte 0x55, 0xaa",
    "unwindlab_loader_end:",
    ".code64",
    ".popsection",
    disk = const DISK,
    packet = const PACKET,
    table = const TABLE,
    table_sectors = const TABLE_SECTORS,
    parts = const PARTS,
    at_once = const AT_ONCE,
    buffer = const BUFFER,
    gdt = const GDT_OPERAND,
    map = const MAP,
    map_length = const MAP_LENGTH,
    map_entries = const MAP_ENTRIES,
    start_info = const START_INFO,
    entry = const ENTRY,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_sector_that_a_bios_boots() {
        assert_eq!(code().len(), SECTOR);
        assert_eq!(code()[510..], [0x55, 0xaa]);
    }
}
