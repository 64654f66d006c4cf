//! What the tracers of a kernel with deferred user-space unwinding wrote, and what must hold of it.
//!
//! perf asks for a user stack from any context and gets it later: a sample ends in a *cookie*, and
//! `PERF_RECORD_CALLCHAIN_DEFERRED` (record 22) brings the stack under the same cookie when the
//! task leaves the kernel. This crate takes the bytes of the ring buffers and says whether the
//! kernel kept its promises. It uses no KVM, no files and no network.
//!
//! - [`trace`] turns a [`Recording`](trace::Recording) of ring buffers into a
//!   [`Trace`](trace::Trace) of ordered events.
//! - [`invariant`] judges a trace: [`INVARIANTS`](invariant::INVARIANTS) are what must hold,
//!   [`Evidence`](invariant::Evidence) is what the trace proves, and
//!   [`finding`](invariant::finding) recognizes kernel bugs that are understood.
//!
//! ```
//! use unwindlab_abi::message::{EventAnnounce, RingAnnounce};
//! use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};
//! use unwindlab_oracle::invariant::{Check, Evidence, INVARIANTS};
//! use unwindlab_oracle::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};
//! use unwindlab_oracle::trace::recording::RingBytes;
//! use unwindlab_oracle::trace::{Recording, Trace};
//!
//! /// A record: `struct perf_event_header` (type, misc, size), then these words.
//! fn record(record_type: u32, misc: u16, words: &[u64]) -> Vec<u8> {
//!     let mut bytes = record_type.to_le_bytes().to_vec();
//!     bytes.extend(misc.to_le_bytes());
//!     bytes.extend((8 + 8 * words.len() as u16).to_le_bytes());
//!     bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
//!     bytes
//! }
//!
//! /// The IDs of the invariants that hold of a ring of CPU 0, and those that are violated.
//! fn judge(ring: Vec<u8>) -> (Vec<&'static str>, Vec<&'static str>) {
//!     // One event, which asks for deferred chains and receives record 22.
//!     let spec = EventSpec {
//!         sample_type: 1 << 1 | 1 << 2 | 1 << 5, // TID, TIME, CALLCHAIN
//!         defer_callchain: true,
//!         defer_output: true,
//!         task: true,
//!         ..EventSpec::blank("clock", EventSource::Dummy)
//!     };
//!     let recording = Recording {
//!         vcpus: 1,
//!         tracing: Some(Tracing { ring_pages: 1, events: vec![spec] }),
//!         rings: vec![RingAnnounce { ring: 0, cpu: 0, control_page: 0, data_pages: vec![], backward: false }],
//!         events: vec![EventAnnounce { spec: 0, cpu: 0, id: 1, ring: 0 }],
//!         ring_bytes: vec![RingBytes { ring: 0, begin: 0, bytes: ring, corrupt: None }],
//!         ..Recording::default()
//!     };
//!     let trace = Trace::decode(&recording);
//!     let evidence = Evidence::new(&trace);
//!     let (mut held, mut violated) = (Vec::new(), Vec::new());
//!     for invariant in INVARIANTS {
//!         match invariant.check(&evidence) {
//!             Check::Holds { .. } => held.push(invariant.id),
//!             Check::Violated(_) => violated.push(invariant.id),
//!             Check::NotExercised { .. } => {}
//!         }
//!     }
//!     (held, violated)
//! }
//!
//! // Task 1001 of process 1000; a cookie is the number of its CPU, from 1, below an odd count.
//! let (task, cookie) = (1001 << 32 | 1000, 3 << 32 | 1);
//! let sample = |time| {
//!     let chain = [CONTEXT_KERNEL, 0xffff_ffff_8100_0400, CONTEXT_USER_DEFERRED, cookie];
//!     record(9, 1, &[&[task, time, 4][..], &chain].concat())
//! };
//! let answer = |cookie, time| record(22, 2, &[cookie, 2, 0x40_1000, 0x40_2000, task, time]);
//!
//! let (held, violated) = judge([sample(100), answer(cookie, 110)].concat());
//! assert!(["C4", "C7", "M4", "D3"].iter().all(|id| held.contains(id)));
//! // Whether it came before the task was in user mode again, these records do not show.
//! assert!(!held.contains(&"M1"));
//! assert!(violated.is_empty());
//!
//! // A kernel that answers with a cookie that nobody got.
//! let (_, violated) = judge([sample(100), answer(5 << 32 | 1, 110)].concat());
//! assert_eq!(violated, ["C7", "M1", "M3"]);
//! ```

#![deny(missing_docs)]

pub mod invariant;
pub mod trace;
