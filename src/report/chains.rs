//! User stacks beside each other: the one that is known, and those that the kernel showed.

use std::fmt::Write as _;

use unwindlab_oracle::invariant::Evidence;
use unwindlab_oracle::trace::{Event, EventKind, Trace};

use super::names::Names;

/// Columns besides the one that is known.
const MAX_SEEN: usize = 2;
/// Frames that are shown before and behind the first that differs.
const AROUND: usize = 3;
/// Frames that are shown.
const MAX_FRAMES: usize = 10;

/// A stack, and where it comes from.
struct Chain {
    title: String,
    frames: Vec<u64>,
}

/// A table of the stacks of these events, a row for each frame, with a `>` where they differ; nothing if all are the same.
#[must_use]
pub fn side_by_side(events: &[usize], trace: &Trace, names: Names<'_>) -> String {
    let chains = chains(events, trace);
    let frame = |chain: &Chain, at: usize| chain.frames.get(at).copied();
    let differs = |at: usize| {
        let mut all = chains.iter().map(|chain| frame(chain, at));
        let first = all.next().flatten();
        all.any(|other| other != first)
    };
    let longest = chains.iter().map(|it| it.frames.len()).max().unwrap_or(0);
    let Some(first) = (0..longest).find(|&at| differs(at)) else {
        return String::new();
    };
    let rows = first.saturating_sub(AROUND)..longest.min(first.saturating_add(MAX_FRAMES - AROUND));
    let cell =
        |chain: &Chain, at| frame(chain, at).map_or_else(|| "-".to_owned(), |ip| names.name(ip));
    let width = |chain: &Chain| {
        let cells = rows.clone().map(|at| cell(chain, at).len());
        cells.chain([chain.title.len()]).max().unwrap_or(0)
    };
    let mut out = String::from("    frame");
    for chain in &chains {
        let _ = write!(out, "  {:<1$}", chain.title, width(chain));
    }
    trim(&mut out);
    if rows.start > 0 {
        let _ = writeln!(out, "      ... {} frames are the same", rows.start);
    }
    for at in rows.clone() {
        let mark = if differs(at) { '>' } else { ' ' };
        let _ = write!(out, "  {mark} {at:>5}");
        for chain in &chains {
            let _ = write!(out, "  {:<1$}", cell(chain, at), width(chain));
        }
        trim(&mut out);
    }
    if rows.end < longest {
        let _ = writeln!(out, "      ... and {} more", longest - rows.end);
    }
    out
}

fn trim(out: &mut String) {
    out.truncate(out.trim_end().len());
    out.push('\n');
}

/// The known stack of the last of these events that has one, and those that the kernel showed, each once.
fn chains(events: &[usize], trace: &Trace) -> Vec<Chain> {
    let evidence = Evidence::new(trace);
    let known = { events.iter().rev() }.find_map(|&index| {
        Some(Chain {
            title: format!("expected of #{index}"),
            frames: evidence.known_stack(index)?,
        })
    });
    let seen = events
        .iter()
        .filter_map(|&index| seen(trace.events.get(index)?));
    let mut chains: Vec<Chain> = known.into_iter().collect();
    let most = chains.len() + MAX_SEEN;
    for chain in seen {
        let mut others = chains.iter().filter(|it| it.title.starts_with("seen"));
        if others.all(|it| it.frames != chain.frames) && chains.len() < most {
            chains.push(chain);
        }
    }
    // One alone differs from nothing.
    if chains.len() < 2 { Vec::new() } else { chains }
}

fn seen(event: &Event) -> Option<Chain> {
    let frames = match &event.kind {
        EventKind::CallchainDeferred(chain) => chain.frames(),
        EventKind::Sample(sample) if sample.is_inline() => sample.user_chain().to_vec(),
        _ => return None,
    };
    Some(Chain {
        title: format!("seen in #{}", event.index),
        frames,
    })
}
