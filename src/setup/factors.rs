//! What varies from set-up to set-up: factors, each with its levels.

/// A factor. Its number is its place in [`FACTORS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "described by their names in FACTORS")]
pub enum Factor {
    Source,
    Receiver,
    SideBand,
    AskerOf,
    ReceiverOf,
    Ip,
    Tid,
    Time,
    Addr,
    Read,
    Id,
    Cpu,
    Period,
    StreamId,
    Raw,
    RegsUser,
    StackUser,
    Weight,
    DataSrc,
    Identifier,
    Transaction,
    RegsIntr,
    PhysAddr,
    CgroupId,
    DataPageSize,
    CodePageSize,
    SampleIdAll,
    ExcludeUser,
    ExcludeKernel,
    ExcludeHv,
    ExcludeIdle,
    ExcludeCallchainKernel,
    ExcludeCallchainUser,
    Pinned,
    Exclusive,
    RemoveOnExec,
    EnableOnExec,
    Precise,
    Wakeup,
    Clock,
    MaxStack,
    Ring,
    Pages,
    Sessions,
    Sysctl,
    Operation,
    Frames,
    Workload,
}

const NO_YES: &[&str] = &["no", "yes"];
const YES_NO: &[&str] = &["yes", "no"];

/// Every factor's name and levels, in the order of [`Factor`]. The first level is the default: no
/// [rule](super::rules::RULES) forbids it.
///
/// The *asker* is the event that requests unwinds, the *receiver* the one that gets record 22.
pub const FACTORS: [(&str, &[&str]); 48] = [
    ("source", &["kprobe", "sys-enter", "sys-exit"]),
    ("receiver", &["another", "itself", "both"]),
    (
        "side-band",
        &[
            "task",
            "mmap",
            "mmap2",
            "mmap-data",
            "comm",
            "comm-exec",
            "ksymbol",
            "context-switch",
            "text-poke",
            "bpf-event",
            "all",
            "none",
            "namespaces",
            "cgroup",
            "build-id",
        ],
    ),
    ("asker-of", TARGETS),
    ("receiver-of", TARGETS),
    ("ip", NO_YES),
    ("tid", YES_NO),
    ("time", YES_NO),
    ("addr", NO_YES),
    ("read", &["no", "value", "all", "group"]),
    ("id", NO_YES),
    ("cpu", YES_NO),
    ("period", NO_YES),
    ("stream-id", NO_YES),
    ("raw", NO_YES),
    ("regs-user", &["no", "ip-sp", "all"]),
    ("stack-user", &["no", "64", "8192", "0"]),
    ("weight", &["no", "word", "struct"]),
    ("data-src", NO_YES),
    ("identifier", YES_NO),
    ("transaction", NO_YES),
    ("regs-intr", NO_YES),
    ("phys-addr", NO_YES),
    ("cgroup-id", NO_YES),
    ("data-page-size", NO_YES),
    ("code-page-size", NO_YES),
    ("sample-id-all", YES_NO),
    ("exclude-user", NO_YES),
    ("exclude-kernel", NO_YES),
    ("exclude-hv", NO_YES),
    ("exclude-idle", NO_YES),
    ("exclude-callchain-kernel", NO_YES),
    ("exclude-callchain-user", NO_YES),
    ("pinned", NO_YES),
    ("exclusive", NO_YES),
    ("remove-on-exec", NO_YES),
    ("enable-on-exec", NO_YES),
    ("precise-ip", &["0", "1", "2", "3"]),
    ("wakeup", &["last", "each-event", "each-byte"]),
    ("clock", &["perf", "monotonic", "monotonic-raw"]),
    ("max-stack", &["default", "2", "127"]),
    (
        "ring",
        &[
            "own",
            "shared",
            "shared-at-open",
            "overwritten",
            "backward",
            "backward-overwritten",
        ],
    ),
    ("pages", &["64", "1", "1024"]),
    ("sessions", &["1", "2", "3"]),
    (
        "sysctl",
        &[
            "default",
            "max-stack-16",
            "max-contexts-3",
            "max-contexts-2",
            "max-contexts-1",
            "paranoid-2",
            "rate-1",
        ],
    ),
    (
        "operation",
        &[
            "none",
            "enable-asker",
            "disable-asker",
            "refresh-asker",
            "reset-asker",
            "close-asker",
            "disable-receiver",
            "pause-receiver",
            "close-receiver",
            "unmap-bystander",
        ],
    ),
    ("frames", &["13", "3", "400"]),
    // What the requests are pending in: `getppid`, `fork`, `execve`, or a `read` that goes on on
    // another CPU.
    ("workload", &["getppid", "fork", "exec", "moved"]),
];

const TARGETS: &[&str] = &[
    "all",
    "thread",
    "inherit",
    "inherit-thread",
    "cgroup",
    "empty-cgroup",
];

impl Factor {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        FACTORS.get(self as usize).map_or("", |(name, _)| name)
    }
}

/// One level of each factor, by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Setup(pub Vec<u8>);

impl Setup {
    /// The set-up in which every factor has its default level.
    #[must_use]
    pub fn plain() -> Self {
        Self(vec![0; FACTORS.len()])
    }

    /// The set-up with these levels.
    #[must_use]
    pub fn with(levels: &[(Factor, &str)]) -> Self {
        let mut setup = Self::plain();
        for &(factor, level) in levels {
            if let Some(place) = setup.0.get_mut(factor as usize) {
                *place = number(factor, level).unwrap_or(0);
            }
        }
        setup
    }

    /// The level of a factor.
    #[must_use]
    pub fn level(&self, factor: Factor) -> &'static str {
        let number = self.0.get(factor as usize).copied().unwrap_or(0);
        let levels = FACTORS.get(factor as usize).map_or(&[][..], |it| it.1);
        levels.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Whether a factor has this level.
    #[must_use]
    pub fn is(&self, factor: Factor, level: &str) -> bool {
        debug_assert!(number(factor, level).is_some(), "{factor:?} has no {level}");
        self.level(factor) == level
    }

    /// The factors that do not have their default level, as `name=level`.
    #[must_use]
    pub fn text(&self) -> String {
        let levels = FACTORS
            .iter()
            .zip(&self.0)
            .filter(|(_, level)| **level != 0);
        let texts = levels.map(|((name, levels), level)| {
            let level = levels.get(usize::from(*level)).copied().unwrap_or_default();
            format!("{name}={level}")
        });
        let texts: Vec<String> = texts.collect();
        match texts.is_empty() {
            true => "every factor at its default".to_owned(),
            false => texts.join(" "),
        }
    }
}

/// The number of a level.
#[must_use]
pub fn number(factor: Factor, level: &str) -> Option<u8> {
    let (_, levels) = FACTORS.get(factor as usize)?;
    let at = levels.iter().position(|it| *it == level)?;
    u8::try_from(at).ok()
}
