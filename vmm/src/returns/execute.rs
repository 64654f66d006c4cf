//! What `sysret` and `iret` do, for the returns that a kernel makes as a rule: between flat 64-bit
//! and 32-bit segments of the layout that `syscall` demands. (AMD APM vol. 3, SYSRET and IRET.)

use iced_x86::{Code, Decoder, DecoderOptions};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

/// Words that `iret` takes from the stack.
pub(super) const IRET_FRAME: usize = 5;

/// The flags that these instructions set: all but RF, VM, VIF and VIP of `sysret`, and all but VM
/// of `iret`. (APM: SYSRET clears RF; bit 1 is always set.)
const SYSRET_FLAGS: u64 = 0x003c_7fd7;
const IRET_FLAGS: u64 = 0x003d_7fd7;
const FLAGS_FIXED: u64 = 1 << 1;
/// The privilege level in a selector.
const RPL: u64 = 3;
/// From the first selector for `sysret` to that of the stack, and of 64-bit code.
const TO_STACK: u64 = 8;
const TO_CODE64: u64 = 16;
/// End of the lower half of the address space with four levels of page tables, and with five.
const LOWER_HALF: u64 = 1 << 47;
const LOWER_HALF_5: u64 = 1 << 56;
const CR4_FIVE_LEVELS: u64 = 1 << 12;

/// An instruction that can return to user mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnKind {
    /// `sysretq`.
    Sysret64,
    /// `sysretl`.
    Sysret32,
    /// `iretq`.
    Iret,
}

/// Why a return is not executed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StrangeReturn {
    /// The frame of an `iret` is not in memory.
    #[error("the frame of an iret is not in memory")]
    NoFrame,
    /// It goes to other segments than those of `syscall`.
    #[error("it goes to segments {cs:#x} and {ss:#x}")]
    Segments {
        /// Of the code.
        cs: u64,
        /// Of the stack.
        ss: u64,
    },
    /// It goes to no address of user mode: the instruction faults.
    #[error("it goes to no address of user mode")]
    Address,
    /// A data segment is the kernel's, which `iret` has to clear.
    #[error("it leaves with a data segment of the kernel's")]
    DataSegment,
    /// User mode has a shadow stack.
    #[error("user mode has a shadow stack")]
    ShadowStack,
}

/// The frame of an `iret`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IretFrame {
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// The state behind a return.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Landed {
    pub(super) regs: kvm_regs,
    /// None: as before.
    pub(super) sregs: Option<kvm_sregs>,
    /// It went to user mode.
    pub(super) user: bool,
}

impl ReturnKind {
    /// The kind of the instruction in `code`; `None` for any other.
    pub(super) fn of(code: &[u8], address: u64) -> Option<Self> {
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        match instruction.code() {
            Code::Sysretq => Some(Self::Sysret64),
            Code::Sysretd => Some(Self::Sysret32),
            Code::Iretq => Some(Self::Iret),
            _ => None,
        }
    }
}

impl IretFrame {
    pub(super) const fn of([rip, cs, rflags, rsp, ss]: [u64; IRET_FRAME]) -> Self {
        Self {
            rip,
            cs: cs & 0xffff,
            rflags,
            rsp,
            ss: ss & 0xffff,
        }
    }
}

/// `sysretq`, or `sysretl`. `star` has the segments.
pub(super) fn sysret(
    regs: &kvm_regs,
    sregs: &kvm_sregs,
    star: u64,
    long: bool,
) -> Result<Landed, StrangeReturn> {
    let base = star >> 48;
    let rip = match long {
        true => regs.rcx,
        false => regs.rcx & 0xffff_ffff,
    };
    check_address(sregs, rip)?;
    let code = if long { base + TO_CODE64 } else { base };
    let regs = kvm_regs {
        rip,
        rflags: regs.r11 & SYSRET_FLAGS | FLAGS_FIXED,
        ..*regs
    };
    Ok(Landed {
        regs,
        sregs: Some(in_user_mode(
            sregs,
            code | RPL,
            (base + TO_STACK) | RPL,
            long,
        )),
        user: true,
    })
}

/// `iretq` with this frame.
pub(super) fn iret(
    regs: &kvm_regs,
    sregs: &kvm_sregs,
    star: u64,
    frame: IretFrame,
) -> Result<Landed, StrangeReturn> {
    let base = star >> 48;
    let landed = kvm_regs {
        rip: frame.rip,
        rsp: frame.rsp,
        rflags: frame.rflags & IRET_FLAGS | FLAGS_FIXED,
        ..*regs
    };
    let IretFrame { cs, ss, .. } = frame;
    let strange = StrangeReturn::Segments { cs, ss };
    if frame.cs & RPL == 0 {
        // A kernel address is in the upper half.
        if u64::from(sregs.cs.selector) != frame.cs || frame.rip >> 63 == 0 {
            return Err(strange);
        }
        let kernel_stack = (star >> 32 & 0xffff) + TO_STACK;
        let stack = match frame.ss {
            ss if ss == u64::from(sregs.ss.selector) => None,
            // What an interrupt of user mode loads, and stays until something loads another.
            0 => Some(no_segment()),
            ss if ss == kernel_stack => Some(kvm_segment {
                dpl: 0,
                ..stack_segment(ss)
            }),
            _ => return Err(strange),
        };
        return Ok(Landed {
            regs: landed,
            sregs: stack.map(|ss| kvm_sregs { ss, ..*sregs }),
            user: false,
        });
    }
    let long = match frame.cs {
        cs if cs == ((base + TO_CODE64) | RPL) => true,
        cs if cs == (base | RPL) => false,
        _ => return Err(strange),
    };
    if frame.ss != ((base + TO_STACK) | RPL) {
        return Err(strange);
    }
    check_address(sregs, frame.rip)?;
    if !long && (frame.rip | frame.rsp) >> 32 != 0 {
        return Err(StrangeReturn::Address);
    }
    let data = [&sregs.ds, &sregs.es, &sregs.fs, &sregs.gs];
    if data.iter().any(|it| it.unusable == 0 && it.dpl < 3) {
        return Err(StrangeReturn::DataSegment);
    }
    Ok(Landed {
        regs: landed,
        sregs: Some(in_user_mode(sregs, frame.cs, frame.ss, long)),
        user: true,
    })
}

fn check_address(sregs: &kvm_sregs, rip: u64) -> Result<(), StrangeReturn> {
    let end = match sregs.cr4 & CR4_FIVE_LEVELS {
        0 => LOWER_HALF,
        _ => LOWER_HALF_5,
    };
    match rip < end {
        true => Ok(()),
        false => Err(StrangeReturn::Address),
    }
}

/// The system registers in user mode with flat segments.
fn in_user_mode(sregs: &kvm_sregs, code: u64, stack: u64, long: bool) -> kvm_sregs {
    kvm_sregs {
        cs: kvm_segment {
            // Code, readable, accessed.
            type_: 11,
            l: u8::from(long),
            db: u8::from(!long),
            ..flat(code)
        },
        ss: stack_segment(stack),
        ..*sregs
    }
}

fn stack_segment(selector: u64) -> kvm_segment {
    kvm_segment {
        // Data, writable, accessed.
        type_: 3,
        db: 1,
        ..flat(selector)
    }
}

fn flat(selector: u64) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: u16::try_from(selector & 0xffff).unwrap_or_default(),
        present: 1,
        dpl: 3,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    }
}

/// The segment of the null selector.
fn no_segment() -> kvm_segment {
    kvm_segment {
        unusable: 1,
        ..kvm_segment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux: `__USER32_CS` is 0x23, `__USER_DS` 0x2b, `__USER_CS` 0x33.
    const STAR: u64 = 0x23_0010 << 32;

    fn regs() -> kvm_regs {
        kvm_regs {
            rip: 0xffff_ffff_8100_0000,
            rsp: 0xffff_c900_0000_0000,
            rcx: 0x1_2345_6789,
            r11: 0x1_0346 | 1 << 17,
            rax: 7,
            ..kvm_regs::default()
        }
    }

    fn sregs() -> kvm_sregs {
        let null = kvm_segment {
            unusable: 1,
            ..kvm_segment::default()
        };
        let mut sregs = kvm_sregs::default();
        (sregs.ds, sregs.es, sregs.fs, sregs.gs) = (null, null, null, null);
        (sregs.cs.selector, sregs.ss.selector) = (0x10, 0x18);
        sregs.cr3 = 0x1000;
        sregs
    }

    fn frame(rip: u64, cs: u64, ss: u64) -> IretFrame {
        IretFrame::of([rip, cs, 0x1_0246, 0x7000_0000, ss])
    }

    #[test]
    fn instructions_are_recognised() {
        let kind = |code: &[u8]| ReturnKind::of(code, 0x1000);
        assert_eq!(kind(&[0x48, 0x0f, 0x07]), Some(ReturnKind::Sysret64));
        assert_eq!(kind(&[0x0f, 0x07, 0xcc]), Some(ReturnKind::Sysret32));
        assert_eq!(kind(&[0x48, 0xcf]), Some(ReturnKind::Iret));
        assert_eq!(kind(&[0xcf, 0x90]), None, "iretd, of one byte");
        assert_eq!(kind(&[0xe6, 0xf5]), None);
        assert_eq!(kind(&[]), None);
    }

    #[test]
    fn sysret_goes_where_rcx_says_with_the_flags_of_r11() {
        let landed = sysret(&regs(), &sregs(), STAR, true).unwrap();
        let now = landed.sregs.unwrap();
        assert!(landed.user);
        assert_eq!(landed.regs.rip, 0x1_2345_6789);
        assert_eq!(landed.regs.rflags, 0x346 | 2, "without RF and VM");
        assert_eq!((landed.regs.rsp, landed.regs.rax), (regs().rsp, 7));
        assert_eq!((now.cs.selector, now.ss.selector), (0x33, 0x2b));
        assert_eq!((now.cs.l, now.cs.db, now.cs.dpl, now.ss.dpl), (1, 0, 3, 3));
        assert_eq!(now.cr3, 0x1000);
        let landed = sysret(&regs(), &sregs(), STAR, false).unwrap();
        let now = landed.sregs.unwrap();
        assert_eq!(landed.regs.rip, 0x2345_6789);
        assert_eq!((now.cs.selector, now.cs.l, now.cs.db), (0x23, 0, 1));
    }

    #[test]
    fn a_return_that_would_fault_is_not_executed() {
        let mut beyond = regs();
        beyond.rcx = 1 << 47;
        let strange = Err(StrangeReturn::Address);
        assert_eq!(sysret(&beyond, &sregs(), STAR, true), strange);
        let mut five = sregs();
        five.cr4 |= CR4_FIVE_LEVELS;
        assert!(sysret(&beyond, &five, STAR, true).is_ok());
        let to = |frame| iret(&regs(), &sregs(), STAR, frame);
        assert_eq!(to(frame(1 << 47, 0x33, 0x2b)), strange);
        assert_eq!(to(frame(1 << 32, 0x23, 0x2b)), strange);
        let strange = |cs, ss| Err(StrangeReturn::Segments { cs, ss });
        let to_segments = |cs, ss| to(frame(0x1000, cs, ss));
        assert_eq!(to_segments(0x33, 0x07), strange(0x33, 0x07), "of an LDT");
        assert_eq!(to_segments(0x0f, 0x2b), strange(0x0f, 0x2b));
        assert_eq!(to_segments(0x10, 0x18), strange(0x10, 0x18), "user's code");
        let mut sregs = sregs();
        sregs.ds.unusable = 0;
        let strange = Err(StrangeReturn::DataSegment);
        assert_eq!(
            iret(&regs(), &sregs, STAR, frame(0x1000, 0x33, 0x2b)),
            strange
        );
        sregs.ds.dpl = 3;
        assert!(iret(&regs(), &sregs, STAR, frame(0x1000, 0x33, 0x2b)).is_ok());
    }

    #[test]
    fn iret_takes_all_from_its_frame() {
        let landed = iret(&regs(), &sregs(), STAR, frame(0x1000, 0x33, 0x2b)).unwrap();
        let now = landed.sregs.unwrap();
        assert!(landed.user);
        assert_eq!((landed.regs.rip, landed.regs.rsp), (0x1000, 0x7000_0000));
        assert_eq!(landed.regs.rflags, 0x1_0246, "with RF");
        assert_eq!((now.cs.selector, now.ss.selector), (0x33, 0x2b));
        let kernel = 0xffff_ffff_8100_1234;
        let landed = iret(&regs(), &sregs(), STAR, frame(kernel, 0x10, 0x18)).unwrap();
        assert_eq!((landed.regs.rip, landed.user), (kernel, false));
        assert_eq!(landed.sregs, None);
        let other = iret(&regs(), &sregs(), STAR, frame(kernel, 0x10, 0x20));
        let strange = StrangeReturn::Segments { cs: 0x10, ss: 0x20 };
        assert_eq!(other, Err(strange));
        // To code that was interrupted with the null selector, and back.
        let landed = iret(&regs(), &sregs(), STAR, frame(kernel, 0x10, 0)).unwrap();
        let without = landed.sregs.unwrap();
        assert_eq!((without.ss.selector, without.ss.unusable), (0, 1));
        let landed = iret(&regs(), &without, STAR, frame(kernel, 0x10, 0x18)).unwrap();
        let with = landed.sregs.unwrap().ss;
        assert_eq!((with.selector, with.unusable, with.dpl), (0x18, 0, 0));
    }
}
