//! [`UserModeLog`] to [`UserModeTrace`].

use unwindlab_abi::user_mode::{
    Asked, Counter, KERNEL_FRAMES, REQUEST_BYTES, REQUEST_HEAD, RESULT_FRAMES, RESULT_HEAD,
    RESULT_SLOTS, request, result,
};

use super::{NonceRequest, NonceResult, UserModeLog, UserModeTrace};

/// Bytes of a record's header: its length and flags, and an offset that is the kernel's own.
const HEADER: usize = 8;
/// `BPF_RINGBUF_BUSY_BIT`: still being written.
const BUSY: u32 = 1 << 31;
/// `BPF_RINGBUF_DISCARD_BIT`.
const DISCARDED: u32 = 1 << 30;

/// Decodes it, with complaints about what makes no sense.
#[must_use]
pub fn decode(log: &UserModeLog) -> (UserModeTrace, Vec<String>) {
    let mut complaints: Vec<String> = Vec::new();
    let counter = |which: Counter| log.counters.get(which as usize).copied().unwrap_or(0);
    let mut trace = UserModeTrace {
        handler: log.handler,
        unwinder: log.unwinder,
        samples: counter(Counter::Samples),
        refused: counter(Counter::Refused),
        full: counter(Counter::Full),
        no_slot: log.taken.saturating_sub(RESULT_SLOTS as u64),
        ..UserModeTrace::default()
    };
    complaints.extend(log.corrupt.clone());
    if let Err(why) = requests(&log.ring, &mut trace.requests) {
        complaints.push(why);
    }
    for words in &log.results {
        match one_result(words) {
            Ok(Some(found)) => trace.results.push(found),
            Ok(None) => trace.unfinished += 1,
            Err(why) => complaints.push(why),
        }
    }
    let say = |what: String| format!("unwinding in user mode: {what}");
    (trace, complaints.into_iter().map(say).collect())
}

fn requests(mut bytes: &[u8], into: &mut Vec<NonceRequest>) -> Result<(), String> {
    while !bytes.is_empty() {
        let number = into.len();
        let (header, rest) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or_else(|| format!("request {number}: cut off in its header"))?;
        let [a, b, c, d, ..] = *header;
        let word = u32::from_le_bytes([a, b, c, d]);
        let len = usize::try_from(word & !(BUSY | DISCARDED)).unwrap_or(usize::MAX);
        if word & BUSY != 0 {
            return Err(format!("request {number}: was never finished"));
        }
        let room = len
            .checked_next_multiple_of(8)
            .filter(|it| *it <= rest.len());
        let room =
            room.ok_or_else(|| format!("request {number}: {len} bytes go beyond the end"))?;
        let (record, rest) = rest.split_at(room);
        bytes = rest;
        if word & DISCARDED != 0 {
            continue;
        }
        if len != REQUEST_BYTES {
            return Err(format!(
                "request {number}: {len} bytes, not {REQUEST_BYTES}"
            ));
        }
        into.push(one_request(record).map_err(|why| format!("request {number}: {why}"))?);
    }
    Ok(())
}

/// The lower half of a word.
fn half(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

fn one_request(record: &[u8]) -> Result<NonceRequest, String> {
    let (words, _) = record.as_chunks::<8>();
    let word = |index: usize| words.get(index).map_or(0, |it| u64::from_le_bytes(*it));
    let asked = word(request::ASKED);
    let task = word(request::TASK);
    let low = half;
    // Negative: an errno, of a thread without a kernel stack to show.
    let bytes = word(request::STACK_BYTES).cast_signed().max(0);
    let frames = usize::try_from(bytes).unwrap_or(usize::MAX) / 8;
    if frames > KERNEL_FRAMES {
        return Err(format!("{frames} kernel frames"));
    }
    Ok(NonceRequest {
        nonce: word(request::NONCE),
        pid: low(task >> 32),
        tid: low(task),
        asked: Asked::from_number(asked).ok_or_else(|| format!("did {asked}"))?,
        answer: word(request::ANSWER).cast_signed(),
        cpu: low(word(request::CPU)),
        kernel: (REQUEST_HEAD..).take(frames).map(word).collect(),
    })
}

fn one_result(words: &[u64]) -> Result<Option<NonceResult>, String> {
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    if word(result::DONE) != 1 {
        return Ok(None);
    }
    let frames = word(result::FRAMES);
    if frames > RESULT_FRAMES as u64 {
        return Err(format!("a result of {frames} frames"));
    }
    let tid = word(result::TID);
    Ok(Some(NonceResult {
        nonce: word(result::NONCE),
        tid: u32::try_from(tid).map_err(|_| format!("a result of thread {tid:#x}"))?,
        ip: word(result::IP),
        sp: word(result::SP),
        frames: words.get(RESULT_HEAD..).unwrap_or_default().to_vec(),
        stop: word(result::STOP),
        code: half(word(result::CODE)).cast_signed(),
        more: half(word(result::CODE) >> 32),
    }))
}
