//! Reads what `perf script --fields pid,tid,cpu,time,event,ip` prints.
//!
//! For each sample a line (`73/76 [000] 12.345678901: cycles:`), a line for each address of its
//! chain (a hexadecimal number), and an empty line. It comes out of the guest: anything may stand
//! there.

/// A sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScriptSample {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// The event, without its modifiers.
    pub event: String,
    /// The chain, innermost frame first: addresses of the kernel, then of the user.
    pub chain: Vec<u64>,
}

impl ScriptSample {
    /// The kernel part and the user part of its chain: kernel addresses are in the upper half.
    #[must_use]
    pub fn parts(&self) -> (&[u64], &[u64]) {
        let kernel = self.chain.iter().take_while(|ip| **ip >> 63 == 1).count();
        self.chain.split_at(kernel)
    }
}

/// A line that is not of the form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of perf script's output is not understood: {text}")]
pub struct ScriptError {
    /// Its number, from 1.
    pub line: usize,
    /// Its beginning.
    pub text: String,
}

/// Reads all samples.
///
/// # Errors
/// [`ScriptError`] for the first line that is not of the form.
pub fn parse(text: &str) -> Result<Vec<ScriptSample>, ScriptError> {
    /// Characters of a line that are shown.
    const SHOWN: usize = 120;
    let mut samples: Vec<ScriptSample> = Vec::new();
    let mut open = false;
    for (line, text) in (1..).zip(text.lines()) {
        let taken = match (text.trim(), open) {
            ("", _) => {
                open = false;
                Some(())
            }
            (address, true) => parse_address(address)
                .zip(samples.last_mut())
                .map(|(address, sample)| sample.chain.push(address)),
            (header, false) => parse_header(header).map(|sample| {
                samples.push(sample);
                open = true;
            }),
        };
        if taken.is_none() {
            let shown: String = text.trim().chars().take(SHOWN).collect();
            let text = shown.escape_debug().to_string();
            return Err(ScriptError { line, text });
        }
    }
    Ok(samples)
}

/// Digits only: a sign is none.
fn parse_address(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

fn parse_header(line: &str) -> Option<ScriptSample> {
    let mut words = line.split_ascii_whitespace();
    let (pid, tid) = words.next()?.split_once('/')?;
    let cpu = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
    let (seconds, fraction) = words.next()?.strip_suffix(':')?.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let event = words.next()?.strip_suffix(':')?;
    let event = event.split(':').next().filter(|name| !name.is_empty())?;
    let whole = is_number(seconds) && is_number(fraction) && words.next().is_none();
    whole.then_some(())?;
    Some(ScriptSample {
        pid: pid.parse().ok()?,
        tid: tid.parse().ok()?,
        cpu: cpu.parse().ok()?,
        event: event.to_owned(),
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TWO: &str = "    1/77    [001]  4.123456789:     cycles: \n\tffffffff81234567 \n\t          \
                       401000 \n\n    0/0     [000]  5.000000001: cycles:P: \n\n";

    #[test]
    fn samples_and_their_chains() {
        let samples = parse(TWO).unwrap();
        let [first, second] = samples.as_slice() else {
            panic!("two samples: {samples:?}");
        };
        assert_eq!((first.pid, first.tid, first.cpu), (1, 77, 1));
        assert_eq!(first.event, "cycles");
        assert_eq!(
            first.parts(),
            (&[0xffff_ffff_8123_4567][..], &[0x40_1000][..])
        );
        assert_eq!((second.tid, second.event.as_str()), (0, "cycles"));
        assert_eq!(second.parts(), (&[][..], &[][..]));
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn anything_else_is_told_by_its_line() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert_eq!(wrong("hello").line, 1);
        assert_eq!(wrong(&format!("{TWO}\tffffffff81234567\n")).line, 7);
        for chain in [
            "b00000006 (cookie)",
            "[deferred]",
            "0x401000",
            "-1",
            "+1",
            "10000000000000000",
        ] {
            let text = format!("1/7 [000] 1.0: cycles:\n\t{chain}\n");
            let text_of = ScriptError {
                line: 2,
                text: chain.to_owned(),
            };
            assert_eq!(wrong(&text), text_of);
        }
        for header in [
            "1 [000] 1.0: cycles:",
            "1/7 000 1.0: cycles:",
            "1/7 [000] 1: cycles:",
            "1/7 [000] x.0: cycles:",
            "1/7 [000] 1.0: cycles",
            "1/7 [000] 1.0: :",
            "1/7 [000] 1.0: cycles: 3",
            "1/4294967296 [000] 1.0: cycles:",
        ] {
            assert_eq!(wrong(header).line, 1, "{header}");
        }
        assert_eq!(wrong(&"x".repeat(1 << 20)).text.len(), 120);
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "(?s).{0,200}|([0-9a-f/: \\[\\].\n\t]{0,200})") {
            let _ = parse(&text);
        }
    }
}
