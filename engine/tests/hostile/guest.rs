//! A bare-metal program that speaks the agent's ports and carries out a script, whatever is in it: the messages are
//! made here, the program only says them, as they are or with bytes flipped.
//!
//! | where | what |
//! |---|---|
//! | 1 MiB | the program, and its script 4 KiB behind |
//! | 2 MiB | mailboxes: a header page and [`ROOM`] data pages each |
//! | [`LOW`] | rings and shared pages, which vCPUs in 16-bit code reach, too |

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use unwindlab_abi::mailbox::{self, Header, PAGE_SIZE};
use unwindlab_abi::message::{
    AgentMessage, EventAnnounce, ExpectedStack, RingAnnounce, ThreadAnnounce,
};
use unwindlab_abi::shared;

const BEGIN: u64 = 1 << 20;
const SCRIPT: u64 = BEGIN + PAGE;
const MAILBOXES: u64 = 2 << 20;
const PAGE: u64 = PAGE_SIZE as u64;
/// Data pages of a mailbox: room for every answer.
const ROOM: u64 = 8;
/// Rings, a control page and two data pages each, then the shared pages.
pub const LOW: u64 = 0x4_0000;
const SHARED: u64 = 0x5_8000;
/// A mailbox in low memory.
const LOW_MAILBOX: u64 = 0x7_0000;
/// Where the other vCPUs start, in 16-bit code.
const OTHERS: u64 = 0x3_0000;
/// Data pages of each ring.
pub const RING_PAGES: u32 = 2;

// Registers: rbx leads through the script, rsi, rdi and rcx are an entry's operands, r15 is random.
std::arch::global_asm!(
    ".pushsection .rodata.hostile, \"a\", @progbits",
    ".globl hostile_begin, hostile_end, hostile_others, hostile_others_end",
    "hostile_begin:",
    "mov ebx, 0x101000",
    "mov r15d, 1",
    "22: mov r9, [rbx]",
    "mov rsi, [rbx + 8]",
    "mov rdi, [rbx + 16]",
    "mov rcx, [rbx + 24]",
    "add rbx, 32",
    "rdtsc; xor r15, rax; or r15, 1",
    "call 80f",
    "cmp r9d, 1; je 31f; cmp r9d, 2; je 32f; cmp r9d, 3; je 33f; cmp r9d, 4; je 34f",
    "cmp r9d, 5; je 35f; cmp r9d, 6; je 36f; cmp r9d, 7; je 37f; cmp r9d, 8; je 38f",
    "cmp r9d, 9; je 39f; cmp r9d, 10; je 40f; cmp r9d, 11; je 41f; cmp r9d, 12; je 42f",
    "cmp r9d, 13; je 43f; cmp r9d, 14; je 44f; cmp r9d, 15; je 45f",
    "cmp r9d, 17; je 47f",
    "49: cli; hlt; jmp 49b",
    // 1: rings with a mailbox.
    "31: mov eax, esi; mov edx, 0xd10; out dx, eax; jmp 22b",
    // 2: so many marks.
    "32: mov eax, esi; mov edx, 0xd14; out dx, eax; dec rdi; jnz 32b; jmp 22b",
    // 3: writes a word.
    "33: mov [rsi], rdi; jmp 22b",
    // 4: other page tables.
    "34: mov cr3, rsi; jmp 22b",
    // 5: no interrupt table.
    "35: lidt [rip + 90f]; ud2",
    "36: jmp rsi",
    // 7: so many characters on the console.
    "37: mov eax, esi; mov edx, 0x3f8; out dx, al; dec rdi; jnz 37b; jmp 22b",
    // 8: starts the other vCPUs.
    "38: mov ebp, 0xfee00300; mov dword ptr [rbp], 0x000c4500",
    "mov dword ptr [rbp], 0x000c4630; mov dword ptr [rbp], 0x000c4630; jmp 22b",
    "39: jmp 39b",
    // 10: random words in so many bytes, a power of two, so many times.
    "40: call 80f; mov r14, r15; dec rdi; and r14, rdi; inc rdi; and r14, -8",
    "mov [rsi + r14], r15; dec rcx; jnz 40b; jmp 22b",
    // 11: another GS base.
    "41: mov eax, esi; mov rdx, rsi; shr rdx, 32; mov ecx, 0xc0000101; wrmsr; jmp 22b",
    // 12: several items at once.
    "42: mov rsi, 0x100000; mov ecx, 3; mov edx, 0xd10; rep outsb; jmp 22b",
    // 13: goes to an entry.
    "43: mov rbx, rsi; jmp 22b",
    "44: rep movsb; jmp 22b",
    // 15: up to so many random bytes, of a power of two.
    "45: mov r8, r15; shr r8, 20; and r8, rcx; jz 22b",
    "46: call 80f; mov r14, r15; shr r14, 8; dec rdi; and r14, rdi; inc rdi",
    "xor [rsi + r14], r15b; dec r8; jnz 46b; jmp 22b",
    // 17: a reset by the keyboard controller.
    "47: mov al, 0xfe; out 0x64, al; jmp 49b",
    // A random number.
    "80: mov r14, r15; shl r14, 13; xor r15, r14",
    "mov r14, r15; shr r14, 7; xor r15, r14; mov r14, r15; shl r14, 17; xor r15, r14; ret",
    "90: .quad 0, 0",
    "hostile_end:",
    // Random words in the low memory from `LOW` on, and now and then a message of a random page.
    "hostile_others:",
    ".code16",
    "rdtsc; mov si, ax",
    "62: imul si, si, 25173; add si, 13849; mov cx, si; shr cx, 9; and cx, 3",
    "shl cx, 12; add cx, 0x4000; mov es, cx; add di, si; imul di, di, 40503",
    "mov es:[di], si; dec bx; jnz 62b",
    "cmp word ptr cs:[0xff0], 0; je 62b",
    "mov dx, 0xd10; movzx eax, si; out dx, eax; jmp 62b",
    ".code64",
    "hostile_others_end:",
    ".popsection",
);

unsafe extern "C" {
    static hostile_begin: u8;
    static hostile_end: u8;
    static hostile_others: u8;
    static hostile_others_end: u8;
}

fn between(begin: *const u8, end: *const u8) -> &'static [u8] {
    // SAFETY: the assembler puts both labels into one read-only section.
    unsafe { std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin)) }
}

/// What the program does.
#[derive(Clone, Default)]
pub struct Script {
    entries: Vec<[u64; 4]>,
    mailboxes: Vec<u8>,
}

impl Script {
    pub fn new() -> Self {
        Self::default()
    }

    fn add(mut self, entry: [u64; 4]) -> Self {
        self.entries.push(entry);
        self
    }

    /// Where the next entry will be.
    fn here(&self) -> u64 {
        SCRIPT + 32 * self.entries.len() as u64
    }

    fn next_mailbox(&self) -> u64 {
        MAILBOXES + self.mailboxes.len() as u64
    }

    /// Puts a mailbox into memory: the header of `len` bytes in these pages, and what is in them.
    fn put(&mut self, header: &[u8], body: &[u8]) -> u64 {
        let at = self.next_mailbox();
        let begin = self.mailboxes.len();
        let size = (1 + ROOM) * PAGE;
        self.mailboxes
            .resize(begin + usize::try_from(size).unwrap(), 0);
        self.mailboxes[begin..begin + header.len()].copy_from_slice(header);
        let begin = begin + PAGE_SIZE;
        self.mailboxes[begin..begin + body.len()].copy_from_slice(body);
        at
    }

    fn pages(at: u64) -> Vec<u64> {
        (1..=ROOM).map(|page| at + PAGE * page).collect()
    }

    /// Says a message.
    pub fn say(mut self, message: &AgentMessage) -> Self {
        let body = mailbox::encode(message).unwrap();
        let pages = Self::pages(self.next_mailbox());
        let header = Header {
            len: body.len(),
            pages,
        };
        let at = self.put(&header.to_bytes(), &body);
        self.ring(at / PAGE)
    }

    /// Says a message from low memory, which others may scribble over, with up to so many bytes flipped.
    pub fn say_from_below(mut self, message: &AgentMessage, flips: u64) -> Self {
        let body = mailbox::encode(message).unwrap();
        let header = Header {
            len: body.len(),
            pages: Self::pages(LOW_MAILBOX),
        };
        let size = (body.len() as u64).next_power_of_two();
        let at = self.put(&header.to_bytes(), &body);
        self.copy(at, LOW_MAILBOX, 2 * PAGE)
            .add([15, LOW_MAILBOX + PAGE, size, flips])
            .add([15, LOW_MAILBOX, 128, flips >> 1])
            .ring(LOW_MAILBOX / PAGE)
    }

    /// Says these bytes with this header.
    pub fn say_raw(mut self, header: &[u8], body: &[u8]) -> Self {
        let at = self.put(header, body);
        self.ring(at / PAGE)
    }

    pub fn ring(self, frame: u64) -> Self {
        self.add([1, frame, 0, 0])
    }

    pub fn marks(self, value: u32, count: u64) -> Self {
        self.add([2, value.into(), count, 0])
    }

    pub fn write(self, at: u64, word: u64) -> Self {
        self.add([3, at, word, 0])
    }

    /// Says a message again and again.
    pub fn say_for_ever(self, message: &AgentMessage) -> Self {
        let from = self.here();
        self.say_from_below(message, 0).again_from(from)
    }

    pub fn page_tables(self, at: u64) -> Self {
        self.add([4, at, 0, 0])
    }

    pub fn triple_fault(self) -> Self {
        self.add([5, 0, 0, 0])
    }

    pub fn jump(self, to: u64) -> Self {
        self.add([6, to, 0, 0])
    }

    pub fn print(self, character: u8, count: u64) -> Self {
        self.add([7, character.into(), count, 0])
    }

    /// Starts the other vCPUs, which scribble over low memory, and may say messages of random pages.
    pub fn start_others(mut self, talk: bool) -> Self {
        let code = between(&raw const hostile_others, &raw const hostile_others_end);
        let at = self.put(code, &[]);
        let this = self
            .copy(at, OTHERS, PAGE)
            .write(OTHERS + 0xff0, talk.into());
        this.add([8, 0, 0, 0])
    }

    pub fn spin(self) -> Self {
        self.add([9, 0, 0, 0])
    }

    pub fn scribble(self, at: u64, size: u64, words: u64) -> Self {
        self.add([10, at, size, words])
    }

    pub fn gs_base(self, base: u64) -> Self {
        self.add([11, base, 0, 0])
    }

    pub fn string_output(self) -> Self {
        self.add([12, 0, 0, 0])
    }

    fn again_from(self, entry: u64) -> Self {
        self.add([13, entry, 0, 0])
    }

    fn copy(self, from: u64, to: u64, size: u64) -> Self {
        self.add([14, from, to, size])
    }

    pub fn reset(self) -> Self {
        self.add([17, 0, 0, 0])
    }

    /// An ELF file of one segment at 1 MiB, entered at the first byte.
    pub fn store(&self, path: &Path) {
        const HEADERS: u64 = 64 + 56;
        let mut image = between(&raw const hostile_begin, &raw const hostile_end).to_vec();
        assert!(image.len() < PAGE_SIZE);
        image.resize(PAGE_SIZE, 0);
        image.extend(
            self.entries
                .iter()
                .flatten()
                .flat_map(|it| it.to_le_bytes()),
        );
        assert!(image.len() < 1 << 20);
        image.resize(1 << 20, 0);
        image.extend(&self.mailboxes);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        // e_type EXEC, e_machine x86-64, e_version, e_entry, e_phoff.
        bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        bytes.extend(BEGIN.to_le_bytes());
        bytes.extend(64_u64.to_le_bytes());
        // e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, no sections.
        bytes.extend([0; 12]);
        bytes.extend([64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        // p_type LOAD, p_flags RWX, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
        bytes.extend([1, 0, 0, 0, 7, 0, 0, 0]);
        let size = image.len() as u64;
        for word in [HEADERS, BEGIN, BEGIN, size, size, 1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(image);
        File::create(path).unwrap().write_all(&bytes).unwrap();
    }
}

/// The messages of an agent that does as it is told.
pub mod honest {
    use super::*;

    pub fn hello(cpus: u32) -> AgentMessage {
        AgentMessage::Hello {
            abi_version: unwindlab_abi::ABI_VERSION,
            release: "hostile".to_owned(),
            cpus,
        }
    }

    pub fn ring(cpu: u32) -> RingAnnounce {
        let pages = u64::from(RING_PAGES);
        let control_page = LOW + u64::from(cpu) * (1 + pages) * PAGE;
        RingAnnounce {
            ring: cpu,
            cpu,
            control_page,
            data_pages: (1..=pages).map(|page| control_page + page * PAGE).collect(),
            backward: false,
        }
    }

    pub fn event(cpu: u32) -> EventAnnounce {
        EventAnnounce {
            spec: 0,
            cpu,
            id: u64::from(cpu) + 1,
            ring: cpu,
        }
    }

    pub fn thread(thread: u32) -> ThreadAnnounce {
        ThreadAnnounce {
            thread,
            pid: 100,
            tid: 100,
            stack: ExpectedStack {
                leaf_start: 0x40_0000,
                leaf_end: 0x40_0010,
                syscall_return: 0x40_0008,
                callers: vec![(0x40_1000, 2)],
            },
        }
    }

    pub fn shared() -> AgentMessage {
        let pages = (0..shared::PAGES as u64).map(|page| SHARED + page * PAGE);
        AgentMessage::Shared {
            pages: pages.collect(),
        }
    }

    /// All that is said between Hello and Ready.
    pub fn set_up(cpus: u32) -> Vec<AgentMessage> {
        let mut said: Vec<_> = (0..cpus).map(|cpu| AgentMessage::Ring(ring(cpu))).collect();
        said.extend((0..cpus).map(|cpu| AgentMessage::Event(event(cpu))));
        said.extend([
            shared(),
            AgentMessage::Thread(thread(0)),
            AgentMessage::Symbols(Vec::new()),
        ]);
        said
    }

    pub fn finished() -> AgentMessage {
        AgentMessage::Finished {
            iterations: vec![1],
        }
    }
}
