//! What a model kernel can do wrong, who asks, and what is shown of it.

use crate::invariant::testkit::entry_text::Via;

/// What is wrong with the kernel. Named as the mutants are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    ClearBeforeUnwind,
    CookieWithoutCpu,
    CounterNotStored,
    ConstantCount,
    PerTaskCounter,
    NoExitFlush,
    ExitingNotRefused,
    NmiWithoutSelfIpi,
    ResetKeepsId,
    ResetKeepsCache,
    ResetKeepsCompleted,
    ResetIgnoresPending,
    /// The NMI that the right model leaves out: in the reset, between mask and id.
    RequestInReset,
    ErrorWithoutCallback,
    OnlyFirstDeferred,
    OutputToEveryone,
    /// Answers after a user instruction, in the next entry.
    AnswersLate,
    /// Answers in the body of a system call, and resets there.
    AnswersInCall,
    /// Writes the answer where the task does not run.
    AnswersElsewhere,
    /// The copies of an answer are not the same.
    CopiesDiffer,
    /// Some NMIs leave no sample.
    SkipsSamples,
    /// In every record of the kind: it names an event of another ring, is too short, is of another
    /// task, begins at another user instruction; has the user chain beside the cookie, has two
    /// markers, has the kernel's context twice, has a count that falls.
    RecordOfOtherEvent,
    ShortRecord,
    AnswerOfOtherTask,
    WrongFrameZero,
    ChainInBoth,
    MarkerTwice,
    ContextTwice,
    CountGoesDown,
}

/// What a trace shows besides requests and answers.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// System call markers.
    pub markers: bool,
    /// Returns to user mode.
    pub witness: bool,
    /// The injection log.
    pub injections: bool,
    /// The lab client's log. It is there only if the lab client is; then no task exits.
    pub lab: bool,
}

/// All that perf can show.
pub const EVERYTHING: Shown = Shown {
    markers: true,
    witness: true,
    injections: true,
    lab: false,
};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An NMI in user mode.
    NmiInUser,
    /// An NMI in a stay of this kind.
    NmiIn(Via),
    /// A kprobe, a return probe or a tracepoint in a stay of this kind.
    ProbeIn(Via),
    /// A probe behind the exit work of a stay of this kind.
    ProbeLate(Via),
    /// The tracepoint of a context switch.
    Switch,
    /// The software event of a page fault of user mode.
    PageFault,
    /// A uprobe: an exception of user mode, and the exit work of it asks.
    Uprobe,
    /// A hardware breakpoint in user mode.
    Breakpoint,
    /// The lab client, at a hook in a stay.
    LabHook,
    /// The lab client, at a hook behind the exit work.
    LabHookLate,
    /// The lab client, in an NMI in user mode.
    LabNmiInUser,
    /// The lab client, in an NMI in the kernel.
    LabNmi,
}

/// All of them.
pub const SOURCES: &[Source] = &[
    Source::NmiInUser,
    Source::NmiIn(Via::Syscall),
    Source::NmiIn(Via::Tick),
    Source::NmiIn(Via::Fault),
    Source::ProbeIn(Via::Syscall),
    Source::ProbeIn(Via::Tick),
    Source::ProbeIn(Via::Fault),
    Source::ProbeLate(Via::Syscall),
    Source::ProbeLate(Via::Tick),
    Source::ProbeLate(Via::Fault),
    Source::Switch,
    Source::PageFault,
    Source::Uprobe,
    Source::Breakpoint,
];

/// Those of the lab client.
pub const LAB_SOURCES: &[Source] = &[
    Source::LabHook,
    Source::LabHookLate,
    Source::LabNmiInUser,
    Source::LabNmi,
];
