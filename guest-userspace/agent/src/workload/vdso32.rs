//! The kernel's 32-bit vDSO in this 64-bit process, and the system call that it makes, or that the
//! kernel returns to it from.
//!
//! The kernel returns from `sysenter` and from a 32-bit `syscall` to a fixed place in the vDSO,
//! wherever they were (`do_fast_syscall_32`, arch/x86/entry/syscall_32.c). It maps the 32-bit vDSO
//! into a process that asks for it and has none (`ARCH_MAP_VDSO_32`,
//! arch/x86/entry/vdso/vma.c `map_vdso_once`).

use std::io;
use std::ops::Range;

use unwindlab_abi::WorkloadKind;

use super::WorkloadError;
use crate::chain::Vsyscall;

/// `ARCH_MAP_VDSO_32` (arch/x86/include/uapi/asm/prctl.h).
const MAP_VDSO_32: libc::c_long = 0x2002;
/// Where nothing else is: above the program, below what `MAP_32BIT` maps.
const ADDRESS: u64 = 0x2000_0000;
/// The function is shorter.
const LONGEST: usize = 64;
/// `int 0x80`, behind which the kernel returns to.
const INT80: [u8; 2] = [0xcd, 0x80];
/// `syscall` and `sysenter`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const SYSENTER: [u8; 2] = [0x0f, 0x34];
/// `ret`.
const RET: u8 = 0xc3;

/// How the kernel is entered: by the vDSO's `syscall`, or by a `sysenter` of the agent's own, which
/// the vDSO of an AMD CPU lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    Syscall,
    Sysenter,
}

impl Instruction {
    /// What a kind is about, if it is one of these.
    pub(super) const fn of(kind: WorkloadKind) -> Option<Self> {
        match kind {
            WorkloadKind::CompatSyscall => Some(Self::Syscall),
            WorkloadKind::CompatSysenter => Some(Self::Sysenter),
            _ => None,
        }
    }

    /// What the vDSO may enter the kernel by.
    const fn of_vdso(self) -> &'static [[u8; 2]] {
        match self {
            Self::Syscall => &[SYSCALL],
            Self::Sysenter => &[SYSENTER, SYSCALL],
        }
    }

    const fn missing(self) -> WorkloadError {
        WorkloadError::Unsupported(match self {
            Self::Syscall => "a 32-bit vDSO that uses `syscall`",
            Self::Sysenter => "a 32-bit vDSO that uses `sysenter` or `syscall`",
        })
    }
}

/// `__kernel_vsyscall` of the 32-bit vDSO, which is mapped if it is not yet.
pub(super) fn vsyscall(thread: u32, instruction: Instruction) -> Result<Vsyscall, WorkloadError> {
    let failed = |source| WorkloadError::System {
        thread,
        what: "cannot map the 32-bit vDSO",
        source,
    };
    let mapped = match mapped().map_err(failed)? {
        Some(mapped) => mapped,
        None => map(instruction, failed)?,
    };
    // SAFETY: the kernel has mapped it readable, and nobody unmaps it.
    let image = unsafe {
        let start = usize::try_from(mapped.start).unwrap_or(0);
        let length = usize::try_from(mapped.end - mapped.start).unwrap_or(0);
        std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), length)
    };
    let base = u32::try_from(mapped.start).ok();
    let Some((base, entry)) = base.zip(entry(image)) else {
        let what = "the vDSO is not one of 32-bit code: the scenario needs `vdso=0`";
        return Err(failed(io::Error::other(what)));
    };
    let found = find(image, base, entry, instruction).ok_or(instruction.missing())?;
    match instruction {
        Instruction::Syscall => Ok(found),
        Instruction::Sysenter => found.by_sysenter().ok_or(instruction.missing()),
    }
}

fn map(
    instruction: Instruction,
    failed: impl Fn(io::Error) -> WorkloadError,
) -> Result<Range<u64>, WorkloadError> {
    // SAFETY: where something is mapped already, the kernel takes another place.
    if unsafe { libc::syscall(libc::SYS_arch_prctl, MAP_VDSO_32, ADDRESS) } < 0 {
        let error = io::Error::last_os_error();
        // A kernel without CONFIG_CHECKPOINT_RESTORE or without 32-bit code does not know the call.
        return Err(match error.raw_os_error() {
            Some(libc::EINVAL) => instruction.missing(),
            _ => failed(error),
        });
    }
    let mapped = mapped().map_err(&failed)?;
    mapped.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
}

/// Where a vDSO is mapped.
fn mapped() -> io::Result<Option<Range<u64>>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    Ok(line.and_then(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?).filter(|range| range.start < range.end)
    }))
}

/// The entry of an ELF file of 32-bit code, which is `__kernel_vsyscall`
/// (arch/x86/entry/vdso/vdso32/vdso32.lds.S).
fn entry(image: &[u8]) -> Option<usize> {
    const IDENT: [u8; 5] = [0x7f, b'E', b'L', b'F', 1];
    const ENTRY: usize = 24;
    image.starts_with(&IDENT).then_some(())?;
    let bytes = image.get(ENTRY..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

/// The function: `push`, `push`, `push`, the instruction, `int 0x80` for a call that is restarted,
/// and behind that the way back (arch/x86/entry/vdso/vdso32/system_call.S). `None` if it has
/// another instruction.
fn find(image: &[u8], base: u32, entry: usize, instruction: Instruction) -> Option<Vsyscall> {
    let code = image.get(entry..)?;
    let code = code.get(..LONGEST).unwrap_or(code);
    let position = |bytes: [u8; 2]| code.windows(2).position(|it| it == bytes);
    let int80 = position(INT80)?;
    let mut fast = instruction.of_vdso().iter().filter_map(|it| position(*it));
    fast.any(|at| at < int80).then_some(())?;
    let landing_pad = int80 + INT80.len();
    let back = code.get(landing_pad..)?.iter().position(|&it| it == RET)?;
    let address = |offset: usize| base.checked_add(u32::try_from(entry + offset).ok()?);
    Some(Vsyscall {
        start: address(0)?,
        landing_pad: address(landing_pad)?,
        end: address(landing_pad + back + 1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel of an AMD CPU patches it: `push ecx`, `push edx`, `push ebp`, `mov ebp, ecx`,
    /// `syscall`, `int 0x80`, `pop ebp`, `pop edx`, `pop ecx`, `ret`.
    const CODE: [u8; 13] = [
        0x51, 0x52, 0x55, 0x89, 0xcd, 0x0f, 0x05, 0xcd, 0x80, 0x5d, 0x5a, 0x59, RET,
    ];

    fn image(code: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 64];
        image[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1]);
        image[24] = 64;
        image.extend(code);
        image
    }

    #[test]
    fn it_is_found_with_where_the_kernel_returns_to() {
        let image = image(&CODE);
        let at = entry(&image).unwrap();
        let found = find(&image, 0x1000, at, Instruction::Syscall);
        let expected = Vsyscall {
            start: 0x1040,
            landing_pad: 0x1049,
            end: 0x104d,
        };
        assert_eq!(found, Some(expected));
        let of_sysenter = find(&image, 0x1000, at, Instruction::Sysenter);
        assert_eq!(of_sysenter, Some(expected), "where that returns to");
    }

    #[test]
    fn on_an_intel_cpu_it_uses_sysenter() {
        let code = CODE.map(|it| if it == SYSCALL[1] { SYSENTER[1] } else { it });
        let image = image(&code);
        assert_eq!(find(&image, 0x1000, 64, Instruction::Syscall), None);
        assert!(find(&image, 0x1000, 64, Instruction::Sysenter).is_some());
    }

    #[test]
    fn any_other_image_has_none() {
        assert_eq!(entry(&[]), None);
        let mut long = image(&CODE);
        long[4] = 2;
        assert_eq!(entry(&long), None);
        // `int 0x80`, `ret`, and the rest, which is never executed.
        let int80 = image(&[&INT80[..], &[RET], &CODE].concat());
        assert_eq!(find(&int80, 0, 64, Instruction::Syscall), None);
        for end in 64..image(&CODE).len() {
            let cut = &image(&CODE)[..end];
            assert_eq!(find(cut, 0, 64, Instruction::Syscall), None, "{end}");
        }
        assert_eq!(
            find(&image(&CODE), u32::MAX - 70, 64, Instruction::Syscall),
            None
        );
        assert_eq!(
            find(&image(&CODE), 0, usize::MAX, Instruction::Syscall),
            None
        );
    }
}
