//! The interface of the lab client: what the agent tells it, and what it writes.
//!
//! The client is guest-kernel/client (C). Its header `include/linux/unwindlab.h` defines the
//! interface. Everything is little-endian.

use serde::{Deserialize, Serialize};

/// The client's device.
pub const DEVICE: &str = "/dev/unwindlab";
/// A symbol that every kernel with the client has.
pub const SYMBOL: &str = "unwindlab_user_left";
/// First word of the control page.
pub const MAGIC: u32 = 0x424c_5755;
/// Second word: version of the log and of the ioctls.
pub const VERSION: u32 = 1;
/// Byte offset of the number of slots in the control page.
pub const SLOTS_OFFSET: usize = 8;
/// Byte offset of the number of slots taken so far.
pub const HEAD_OFFSET: usize = 16;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 64;
/// Most pages of slots: with the control page, as many as one `Locate` covers.
pub const MAX_LOG_PAGES: u32 = 32_768;
/// Most clients in a plan; a kernel has room for fewer.
pub const MAX_CLIENTS: u32 = 64;
/// Most places in a plan.
pub const MAX_PLACES: usize = 4;
/// Bytes for a place's symbol, with the zero behind it.
pub const SYMBOL_BYTES: usize = 64;
/// Frames in one slot of frames.
pub const SLOT_FRAMES: usize = 5;

/// The kind of a slot; the client's `enum unwindlab_kind`.
pub mod kind {
    #![allow(
        missing_docs,
        reason = "documented at `LabKind` and in the client's header"
    )]
    pub const TARGET: u8 = 1;
    pub const REQUEST: u8 = 2;
    pub const CALLBACK: u8 = 3;
    pub const CALLED: u8 = 4;
    /// Frames of a callback recorded in another slot.
    pub const FRAMES: u8 = 5;
    pub const RETURN: u8 = 6;
    pub const MIGRATE: u8 = 7;
    pub const EXIT: u8 = 8;
    pub const FREE: u8 = 9;
    pub const REGISTERED: u8 = 10;
    pub const CANCEL: u8 = 11;
    pub const CANCELLED: u8 = 12;
    pub const START: u8 = 13;
    pub const STOP: u8 = 14;
}

/// Where clients make requests; the client's `enum unwindlab_point`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LabPoint {
    /// The start of a workload thread's system call.
    SysEnter,
    /// The end of a workload thread's system call.
    SysExit,
    /// Any NMI that hits a workload thread, in user mode or in the kernel.
    Nmi,
    /// A poke by another CPU; not a point of `ask`.
    #[serde(skip)]
    Poke,
    /// The exit of a workload thread that is marked as exiting.
    Death,
}

impl LabPoint {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// Its number in the client.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The context of a request; the client's `enum unwindlab_context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LabContext {
    /// The thread itself.
    Task,
    /// A soft interrupt on top of it.
    Softirq,
    /// A hard interrupt.
    Hardirq,
    /// A non-maskable interrupt.
    Nmi,
}

impl LabContext {
    /// All contexts, by number.
    pub const ALL: [Self; 4] = [Self::Task, Self::Softirq, Self::Hardirq, Self::Nmi];

    /// Its number in the client.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The name in YAML and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Softirq => "softirq",
            Self::Hardirq => "hardirq",
            Self::Nmi => "nmi",
        }
    }
}

/// What the lab client does in a trial, with everything resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabPlan {
    /// Number of clients, registered before the workload starts. The kernel may refuse some.
    pub clients: u32,
    /// Pages of slots in the log.
    pub log_pages: u32,
    /// The requests at each [`LabPoint`], by its index.
    pub ask: [LabAsk; LabPoint::COUNT],
    /// In the callbacks of these clients (a bit each) ...
    pub nested_in: u64,
    /// ... these make requests.
    pub nested: u64,
    /// Least duration of a callback in microseconds.
    pub callback_delay_us: u32,
    /// Clients that are cancelled before the workload starts and still make requests.
    pub cancelled: u64,
    /// Requests at instructions of the kernel.
    pub places: Vec<LabPlace>,
    /// Threads that disturb the workload.
    pub pokes: Vec<LabPoke>,
    /// Threads that cancel clients and register them again.
    pub churn: Vec<LabChurn>,
}

/// The requests at one point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabAsk {
    /// The clients, a bit each.
    pub clients: u64,
    /// The contexts, a bit for each [`LabContext::number`].
    pub contexts: u32,
    /// How many times in a row.
    pub count: u32,
}

/// Requests at an instruction of the kernel, where the client sets a kprobe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabPlace {
    /// The symbol.
    pub symbol: String,
    /// Bytes from it.
    pub offset: u32,
    /// The clients, a bit each.
    pub clients: u64,
    /// How many times in a row.
    pub count: u32,
}

/// A thread on one CPU that makes clients request unwinds of what runs on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabPoke {
    /// The CPU on which it runs.
    pub from: u32,
    /// The CPU that is interrupted.
    pub to: u32,
    /// The context of the requests there; not [`LabContext::Task`].
    pub context: LabContext,
    /// How many times in a row.
    pub count: u32,
    /// Microseconds that it sleeps between two rounds.
    pub period_us: u64,
}

/// A thread that cancels clients and registers them again, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabChurn {
    /// The CPU on which it runs.
    pub cpu: u32,
    /// The clients, a bit each.
    pub clients: u64,
    /// Microseconds that it sleeps between two rounds.
    pub period_us: u64,
}

/// The client's ioctls, with the argument's type in the comment.
pub mod ioctl {
    /// Pages of slots (`u32`).
    pub const SETUP: u64 = 0x4004_5501;
    /// A tid (`u32`).
    pub const TARGET: u64 = 0x4004_5502;
    /// A client (`u32`).
    pub const REGISTER: u64 = 0x4004_5503;
    /// A client (`u32`).
    pub const CANCEL: u64 = 0x4004_5504;
    /// [`super::RawConfig`].
    pub const CONFIG: u64 = 0x4068_5505;
    /// None.
    pub const START: u64 = 0x5506;
    /// None.
    pub const STOP: u64 = 0x5507;
    /// [`super::RawPoke`].
    pub const POKE: u64 = 0x4010_5508;
    /// [`super::RawPlace`].
    pub const PLACE: u64 = 0x4050_5509;
}

/// `flags`: cancelled clients still make requests.
pub const ASK_CANCELLED: u32 = 1;

/// `struct unwindlab_ask`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct RawAsk {
    /// A bit each.
    pub clients: u64,
    /// A bit each.
    pub contexts: u32,
    /// Times.
    pub count: u32,
}

/// `struct unwindlab_config`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct RawConfig {
    /// By point.
    pub ask: [RawAsk; LabPoint::COUNT],
    /// A bit each.
    pub nested_in: u64,
    /// A bit each.
    pub nested: u64,
    /// Microseconds.
    pub delay_us: u32,
    /// [`ASK_CANCELLED`].
    pub flags: u32,
}

/// `struct unwindlab_poke`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawPoke {
    /// The CPU.
    pub cpu: u32,
    /// [`LabContext::number`].
    pub context: u32,
    /// Times.
    pub count: u32,
    /// Zero.
    pub pad: u32,
}

/// `struct unwindlab_place`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawPlace {
    /// The symbol, and zeros.
    pub symbol: [u8; SYMBOL_BYTES],
    /// Bytes from it.
    pub offset: u32,
    /// Times.
    pub count: u32,
    /// A bit each.
    pub clients: u64,
}

impl LabPlace {
    /// The place for the client; `None` if the symbol is too long for it.
    #[must_use]
    pub fn raw(&self) -> Option<RawPlace> {
        let mut symbol = [0; SYMBOL_BYTES];
        let (_zero, room) = symbol.split_last_mut()?;
        let room = room.get_mut(..self.symbol.len())?;
        room.copy_from_slice(self.symbol.as_bytes());
        Some(RawPlace {
            symbol,
            offset: self.offset,
            count: self.count,
            clients: self.clients,
        })
    }
}

impl LabPlan {
    /// The configuration for the client.
    #[must_use]
    pub fn raw_config(&self) -> RawConfig {
        RawConfig {
            ask: self.ask.map(|ask| RawAsk {
                clients: ask.clients,
                contexts: ask.contexts,
                count: ask.count,
            }),
            nested_in: self.nested_in,
            nested: self.nested,
            delay_us: self.callback_delay_us,
            flags: if self.cancelled == 0 {
                0
            } else {
                ASK_CANCELLED
            },
        }
    }
}

/// The clients in a mask, in order.
pub fn clients(mask: u64) -> impl Iterator<Item = u32> {
    (0..MAX_CLIENTS).filter(move |&client| mask >> client & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size is part of an ioctl's number.
    #[test]
    fn sizes_are_those_of_the_ioctls() {
        let size = |number: u64| usize::try_from(number >> 16 & 0x3fff);
        assert_eq!(size(ioctl::CONFIG), Ok(size_of::<RawConfig>()));
        assert_eq!(size(ioctl::POKE), Ok(size_of::<RawPoke>()));
        assert_eq!(size(ioctl::PLACE), Ok(size_of::<RawPlace>()));
        assert_eq!(size(ioctl::SETUP), Ok(size_of::<u32>()));
    }

    /// The client's header is the contract; its numbers are repeated here.
    #[test]
    fn the_numbers_are_those_of_the_client() {
        let header = include_str!("../../../guest-kernel/client/files/include/linux/unwindlab.h");
        for line in [
            format!("#define UNWINDLAB_VERSION\t{VERSION}\n"),
            format!("#define UNWINDLAB_MAGIC\t\t{MAGIC:#x}\t"),
            format!("#define UNWINDLAB_CLIENTS\t{MAX_CLIENTS}\n"),
            format!("#define UNWINDLAB_PLACES\t{MAX_PLACES}\n"),
            format!("\tchar\tsymbol[{SYMBOL_BYTES}];\n"),
            format!("#define UNWINDLAB_FRAMES\t{SLOT_FRAMES}\n"),
            format!("#define UNWINDLAB_ASK_CANCELLED\t{ASK_CANCELLED}\t"),
        ] {
            assert!(header.contains(&line), "{line}");
        }
    }

    #[test]
    fn a_symbol_has_a_zero_behind_it() {
        let place = |length| LabPlace {
            symbol: "x".repeat(length),
            offset: 4,
            clients: 1,
            count: 1,
        };
        let longest = place(SYMBOL_BYTES - 1).raw().unwrap();
        assert_eq!(longest.symbol.last(), Some(&0));
        assert!(place(SYMBOL_BYTES).raw().is_none());
    }

    #[test]
    fn masks() {
        assert_eq!(clients(0b1010).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(clients(u64::MAX).count(), 64);
    }
}
