//! What the commands do, as functions of a library: each campaign takes a typed request, tells a
//! stream of events while it runs, and returns a typed summary.
//!
//! A campaign neither parses a command line nor prints. Progress in words goes to
//! [`Context::progress`]; an event goes to the function that the caller passes, and an error of
//! that function ends the campaign.
//!
//! - [`run()`](run::run): scenarios on one kernel
//! - [`sweep()`](sweep::sweep): an NMI at every instruction of a path
//! - [`requests()`](requests::requests): a tracer at every place of a path that takes one
//! - [`setups::run()`]: set-ups of perf, from one boot
//! - [`replay()`](replay::replay): one failing trial of a run or a sweep again
//! - [`mutants()`](mutants::mutants), [`variants()`](variants::variants),
//!   [`series()`](series::series): the same scenarios on one kernel after the other
//! - [`bisect()`](bisect::bisect): the search for the first bad commit
//! - [`check()`](check::check): recordings that perf made elsewhere
//! - [`findings()`](findings::findings): the findings that a kernel has by its code
//! - [`bug_report()`](bug_report::bug_report): a finding as a kernel maintainer wants to be told of it
//! - [`merge()`](merge::merge): the results of parts that several machines made, as one
//! - [`self_test()`](self_test::self_test): the VMM's own checks of a KVM
//! - [`costs()`](costs::costs): what a sample with a user stack costs
//! - [`designs()`](designs::designs): the kernel's unwinding beside that in user mode
//! - [`measure()`](bench::measure): what is promised, measured

pub mod analysis;
pub mod bench;
pub mod bisect;
pub mod bug_report;
pub mod check;
mod context;
pub mod costs;
pub mod designs;
pub mod error;
pub mod findings;
pub mod generated;
pub mod kernel;
pub mod merge;
pub mod mutants;
pub mod part;
mod program;
pub mod replay;
pub mod replay_file;
pub mod requests;
pub mod run;
pub mod self_test;
pub mod series;
pub mod setups;
mod suite;
pub mod sweep;
#[cfg(test)]
pub(crate) mod testing;
pub mod variants;

pub use self::context::Context;
