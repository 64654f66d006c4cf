//! Stacks with what an interpreter executes in place of its own frame.

use unwindlab_abi::user_stack::{INTERPRETED, UserFrame};

use crate::trace::Trace;

/// The interpreter.
const INTERPRETER: &str = "interpret";

/// The same stack with what the interpreter executes: everything, down to the native leaf.
pub(in crate::invariant) fn semantic(trace: &Trace, truth: &[u64]) -> Vec<UserFrame> {
    let symbol = { trace.user_symbols.iter() }.find(|it| it.name == INTERPRETER);
    let functions = || {
        (0..INTERPRETED.len())
            .rev()
            .filter_map(|it| u32::try_from(it).ok())
    };
    let frames = truth.iter().enumerate().flat_map(|(number, &ip)| {
        let call = ip.saturating_sub(u64::from(number > 0));
        match symbol {
            Some(symbol) if (symbol.start..symbol.end).contains(&call) => {
                functions().map(UserFrame::Interpreted).collect()
            }
            _ => vec![UserFrame::Native(ip)],
        }
    });
    frames.collect()
}

/// A stack by the names of its functions, innermost first. Neighbours of one name are one.
pub(in crate::invariant) fn names(trace: &Trace, frames: &[UserFrame]) -> String {
    let mut named: Vec<(String, usize)> = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let name = match *frame {
            UserFrame::Interpreted(function) => {
                let name = usize::try_from(function)
                    .ok()
                    .and_then(|it| INTERPRETED.get(it));
                name.map_or_else(|| format!("function {function}"), |it| (*it).to_owned())
            }
            UserFrame::Native(ip) => function(trace, ip.saturating_sub(u64::from(number > 0))),
        };
        match named.last_mut() {
            Some((last, times)) if *last == name => *times += 1,
            _ => named.push((name, 1)),
        }
    }
    let text = named.into_iter().map(|(name, times)| match times {
        1 => name,
        _ => format!("{name} ({times} times)"),
    });
    text.collect::<Vec<_>>().join(", ")
}

/// The function that has an address: the largest symbol, because names of parts lie within it.
fn function(trace: &Trace, ip: u64) -> String {
    let here = trace
        .user_symbols
        .iter()
        .filter(|it| (it.start..it.end).contains(&ip));
    let largest = here.max_by_key(|it| it.end.saturating_sub(it.start));
    largest.map_or_else(|| format!("{ip:#x}"), |it| it.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_abi::message::UserSymbol;

    fn trace() -> Trace {
        let symbol = |name: &str, start, end| UserSymbol {
            name: name.to_owned(),
            start,
            end,
        };
        Trace {
            user_symbols: vec![
                symbol(INTERPRETER, 0x1000, 0x1100),
                symbol("part", 0x2000, 0x2010),
                symbol("whole", 0x2000, 0x2100),
            ],
            ..Trace::default()
        }
    }

    /// A return address behind the last instruction of a function is that function's; an interrupted instruction
    /// there is the next one's.
    #[test]
    fn a_caller_is_where_its_call_is() {
        let is_native = |truth: &[u64], number: usize| {
            let ip = truth[number];
            semantic(&trace(), truth).contains(&UserFrame::Native(ip))
        };
        assert!(is_native(&[0x1100, 0x3000], 0));
        assert!(!is_native(&[0x3000, 0x1100], 1));
        assert!(!is_native(&[0x1000, 0x3000], 0));
        assert!(is_native(&[0x3000, 0x1000], 1));
    }

    #[test]
    fn neighbours_of_one_name_are_one() {
        let [f, g] = [0, 1].map(UserFrame::Interpreted);
        let native = UserFrame::Native;
        let name = |frames: &[UserFrame]| names(&trace(), frames);
        assert_eq!(name(&[f, f, f, g, f]), "f (3 times), g, f");
        assert_eq!(name(&[native(0x2004), native(0x2100)]), "whole (2 times)");
        assert_eq!(name(&[native(0x2100)]), "0x2100");
        assert_eq!(name(&[UserFrame::Interpreted(99)]), "function 99");
    }
}
