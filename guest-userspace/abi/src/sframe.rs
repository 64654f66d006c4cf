//! What was done with SFrame sections before the kernel was asked for a stack, and what may come of
//! it.

use serde::{Deserialize, Serialize};

/// Requests in a row that are alike: each is a `getppid` of the leaf without frame pointers, by
/// which an event asks. All requests of a trial, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SframeAsks {
    /// What is tried.
    pub case: SframeCase,
    /// Number of the first, among those of the case.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// What the registration of the section returned: 0, or the errno.
    pub errno: i32,
    /// What a right kernel may show.
    pub expects: SframeExpects,
}

/// The chain that a request may show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SframeExpects {
    /// The whole stack.
    Whole,
    /// Frame 0 and nothing else: no section is registered.
    Alone,
    /// The whole stack, or its first frames.
    Shorter,
    /// As [`Self::Shorter`], or the first of these frames, which the section says.
    Says(Vec<u64>),
    /// As [`Self::Shorter`], or something that nobody has worked out.
    Unknown,
}

/// The pages of a section that walks touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SframeReads {
    /// What is tried.
    pub case: SframeCase,
    /// Its number, among those of the case.
    pub number: u32,
    /// Pages of the section.
    pub pages: u32,
    /// How many of them the walk touched.
    pub inside: u32,
    /// Touched pages just before and just behind the section.
    pub outside: u32,
}

macro_rules! cases {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// What is tried with sections.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum SframeCase {
            $($(#[doc = $doc])* $name,)*
        }

        impl SframeCase {
            /// In reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

cases! {
    /// No section yet.
    NoSection = "no section",
    /// A right section.
    Right = "right section",
    /// Rows that repeat every 0 bytes.
    RepeatOfZero = "rep_size 0",
    /// A function with more rows than the section has.
    RowsBeyond = "row count beyond the section",
    /// More functions than the section has.
    FunctionsBeyond = "function count beyond the section",
    /// A table of functions outside of the section.
    FunctionsOutside = "offset of functions outside",
    /// Rows outside of the section.
    RowsOutside = "offset of rows outside",
    /// The rows of a function outside of the section.
    FunctionRowsOutside = "offset of a function's rows outside",
    /// The flag that functions are sorted is not set.
    NotSorted = "sorted flag not set",
    /// Functions that are not sorted although the flag says so.
    Unsorted = "unsorted functions",
    /// Two functions with a part in common.
    Overlapping = "overlapping functions",
    /// A section that ends in its header.
    Cut = "section ends in its header",
    /// A section at an address without memory.
    Unmapped = "section at unmapped memory",
    /// A section in kernel memory.
    KernelMemory = "section in kernel memory",
    /// A section without bytes.
    Empty = "section without bytes",
    /// A section for no code.
    EmptyText = "section for no code",
    /// Two sections, the code of one behind that of the other.
    Adjacent = "adjacent sections",
    /// A second section for the same code.
    SameText = "second section for the same code",
    /// A section that is not in the page tables.
    NotPresent = "section on a page that is not present",
    /// A section that is taken away while a walk waits in it.
    RemovedInWalk = "taken away while a walk waits in it",
    /// A section that is unmapped while a walk waits in it.
    UnmappedInWalk = "unmapped while a walk waits in it",
    /// A section that becomes another one while a walk waits in it.
    ChangedInWalk = "changed while a walk waits in it",
    /// A section to which another thread writes all the time.
    ChangedAllTheTime = "changed by another thread all the time",
    /// Two threads that register and take away at once.
    Race = "two threads register and remove at once",
    /// As many sections as there may be, and right ones.
    Thousands = "thousands of sections",
    /// One more than there may be.
    OneTooMany = "one section too many",
    /// A child process asks, after a fork with a lying section.
    ForkOfHostile = "fork with a hostile section",
    /// Sections with a field that is wrong.
    Field = "one wrong field",
    /// A section with more rows than a walk reads.
    EndlessRows = "rows without end",
    /// A child process asks.
    Forked = "fork: the child",
    /// The child took its section away; the parent asks.
    ForkedParent = "fork: the parent, the child having removed its own",
    /// Another program asks, after exec, with the same bytes at the same place.
    Executed = "exec: the new program",
    /// The section was unmapped, and the same bytes were put there again.
    UnmappedSection = "munmap of the section, mapped again",
    /// Something else was mapped over the section.
    Overmapped = "mmap over the section",
    /// The section was moved away.
    Moved = "mremap of the section",
    /// The section was taken away by prctl.
    Removed = "PR_REMOVE_SFRAME",
}

impl SframeCase {
    /// Whether it is about what a section outlives, and not about a section that is hostile.
    #[must_use]
    pub fn is_of_life(self) -> bool {
        self >= Self::Forked
    }
}
