//! bpf(2).

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd};
use rustix::io::Errno;

use super::types;
use crate::user_mode::asm::Code;
use crate::user_mode::kernel::LICENSE;
use crate::user_mode::object::MapDefinition;
use crate::user_mode::program::PENDING;

/// `BPF_PROG_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 5;
/// Bytes of the verifier's log.
const LOG_BYTES: u32 = 1 << 16;
/// Bytes of the log's end that are told.
const TOLD: usize = 1024;
/// `src_reg` of an instruction that names a map by its descriptor (`BPF_PSEUDO_MAP_FD`).
const MAP_FD: u8 = 1;

/// Attributes of a command, all 0.
fn attributes() -> bpf_attr {
    // SAFETY: integers and arrays of them only.
    unsafe { std::mem::zeroed() }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address<T>(of: &[T]) -> u64 {
    of.as_ptr().expose_provenance() as u64
}

/// # Safety
/// The addresses in the attributes are of memory as long as the command says.
unsafe fn bpf(command: bpf_cmd, attributes: &bpf_attr) -> Result<i64, Errno> {
    let attributes: *const bpf_attr = attributes;
    // SAFETY: as the caller promises.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            attributes,
            size_of::<bpf_attr>(),
        )
    };
    match answer {
        0.. => Ok(answer),
        _ => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}

/// # Safety
/// As [`bpf`]; the command's answer is a new descriptor.
unsafe fn make(command: bpf_cmd, attributes: &bpf_attr) -> Result<OwnedFd, Errno> {
    // SAFETY: as the caller promises.
    let fd = unsafe { bpf(command, attributes) }?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the kernel the type information.
pub(super) fn load_types(types: &[u8]) -> Result<OwnedFd, Errno> {
    let mut all = attributes();
    let len = u32::try_from(types.len()).map_err(|_| Errno::TOOBIG)?;
    all.__bindgen_anon_7.btf = address(types);
    all.__bindgen_anon_7.btf_size = len;
    // SAFETY: that many bytes are there.
    unsafe { make(bpf_cmd::BPF_BTF_LOAD, &all) }
}

/// Makes a map. The value of the map of pending nonces has a type.
pub(super) fn create_map(map: &MapDefinition, types: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut all = attributes();
    all.__bindgen_anon_1.map_type = map.kind;
    all.__bindgen_anon_1.key_size = map.key;
    all.__bindgen_anon_1.value_size = map.value;
    all.__bindgen_anon_1.max_entries = map.entries;
    all.__bindgen_anon_1.map_flags = map.flags;
    if map.name == PENDING {
        all.__bindgen_anon_1.btf_fd = raw(types);
        all.__bindgen_anon_1.btf_key_type_id = types::KEY;
        all.__bindgen_anon_1.btf_value_type_id = types::VALUE;
    }
    // SAFETY: the attributes have no addresses.
    unsafe { make(bpf_cmd::BPF_MAP_CREATE, &all) }
}

/// Writes an entry of a map whose keys and values have four bytes.
pub(super) fn insert(map: BorrowedFd<'_>, key: &u32, value: &u32) -> Result<(), Errno> {
    let mut all = attributes();
    all.__bindgen_anon_2.map_fd = raw(map);
    all.__bindgen_anon_2.key = address(std::slice::from_ref(key));
    all.__bindgen_anon_2.__bindgen_anon_1.value = address(std::slice::from_ref(value));
    // SAFETY: both are there.
    unsafe { bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &all) }.map(|_| ())
}

/// Has the instruction at the byte offset name the map. `None` if there is no such instruction.
pub(super) fn name_map(code: &mut [u8], at: u64, map: BorrowedFd<'_>) -> Option<()> {
    let at = usize::try_from(at).ok()?;
    let instruction = code.get_mut(at..)?.first_chunk_mut::<8>()?;
    let [_, registers, _, _, value @ ..] = instruction;
    *registers |= MAP_FD << 4;
    *value = map.as_raw_fd().to_le_bytes();
    Some(())
}

/// Loads a program for tracepoints. An error has the end of the verifier's log, which is made only then: it is long.
pub(super) fn load_program(code: &Code, types: BorrowedFd<'_>) -> Result<OwnedFd, (Errno, String)> {
    let starts = [0].into_iter().chain(code.functions.iter().copied());
    let functions: Vec<[u32; 2]> = { starts.zip(types::FUNCTIONS) }
        .map(|(start, id)| [u32::try_from(start).unwrap_or(u32::MAX), id])
        .collect();
    // A copy whose instructions are aligned.
    let (words, _) = code.bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|it| u64::from_ne_bytes(*it)).collect();
    let mut all = attributes();
    // SAFETY: all fields are integers, and the union is zeroed.
    let load = unsafe { &mut all.__bindgen_anon_3 };
    load.prog_type = TRACEPOINT;
    load.insn_cnt = u32::try_from(words.len()).unwrap_or(u32::MAX);
    load.insns = address(&words);
    load.license = address(LICENSE);
    load.prog_btf_fd = raw(types);
    load.func_info_rec_size = 8;
    load.func_info = address(&functions);
    load.func_info_cnt = u32::try_from(functions.len()).unwrap_or(0);
    // SAFETY: code, licence and functions are there, as long as said.
    unsafe { make(bpf_cmd::BPF_PROG_LOAD, &all) }.map_err(|errno| {
        let mut log = vec![0_u8; LOG_BYTES as usize];
        // SAFETY: as above.
        let load = unsafe { &mut all.__bindgen_anon_3 };
        load.log_level = 1;
        load.log_size = LOG_BYTES;
        load.log_buf = log.as_mut_ptr().expose_provenance() as u64;
        // For the log: the kernel refuses it again. A log that is too long ends with another errno, too.
        // SAFETY: as above, and the log is there.
        let _ = unsafe { make(bpf_cmd::BPF_PROG_LOAD, &all) };
        let end = log.iter().position(|it| *it == 0).unwrap_or(log.len());
        let told = log.get(end.saturating_sub(TOLD)..end).unwrap_or_default();
        (errno, String::from_utf8_lossy(told).into_owned())
    })
}
