use proptest::prelude::*;
use unwindlab_abi::user_mode::{Asked, REQUEST_BYTES, RESULT_HEAD, request, result};

use super::{UserModeLog, decode};

fn record(nonce: u64, asked: u64, frames: &[u64]) -> Vec<u8> {
    let mut words = [0; REQUEST_BYTES / 8];
    words[request::NONCE] = nonce;
    words[request::TASK] = 33 << 32 | 34;
    words[request::ASKED] = asked;
    words[request::STACK_BYTES] = 8 * frames.len() as u64;
    words[6..6 + frames.len()].copy_from_slice(frames);
    let header = (REQUEST_BYTES as u64).to_le_bytes();
    let words = words.iter().flat_map(|it| it.to_le_bytes());
    header.into_iter().chain(words).collect()
}

#[test]
fn requests_and_results_are_read_back() {
    let mut answer = vec![0; RESULT_HEAD];
    (answer[result::NONCE], answer[result::TID]) = (7, 34);
    (answer[result::FRAMES], answer[result::DONE]) = (2, 1);
    answer.extend([0x10, 0x20]);
    let log = UserModeLog {
        ring: [record(7, 1, &[1, 2]), record(7, 2, &[])].concat(),
        results: vec![answer, vec![0; RESULT_HEAD]],
        taken: 2,
        ..UserModeLog::default()
    };
    let (trace, complaints) = decode(&log);
    assert_eq!(complaints, [""; 0]);
    assert_eq!(trace.requests[0].kernel, [1, 2]);
    assert_eq!((trace.requests[0].pid, trace.requests[0].tid), (33, 34));
    assert_eq!(trace.requests[1].asked, Asked::Again);
    assert_eq!(trace.results[0].frames, [0x10, 0x20]);
    assert_eq!((trace.results.len(), trace.unfinished), (1, 1));
}

#[test]
fn what_makes_no_sense_is_said() {
    let wrong = |ring: Vec<u8>| {
        let log = UserModeLog {
            ring,
            ..UserModeLog::default()
        };
        decode(&log).1.concat()
    };
    assert!(wrong(vec![1; 4]).contains("cut off"));
    assert!(wrong(record(7, 9, &[])).contains("did 9"));
    let mut busy = record(7, 1, &[]);
    busy[3] |= 0x80;
    assert!(wrong(busy).contains("never finished"));
    let mut long = record(7, 1, &[]);
    long[2] = 0xff;
    assert!(wrong(long).contains("beyond the end"));
}

proptest! {
    #[test]
    fn any_bytes_decode(
        ring in proptest::collection::vec(any::<u8>(), 0..2000),
        results in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..20), 0..4),
    ) {
        let log = UserModeLog { ring, results, ..UserModeLog::default() };
        let (trace, _) = decode(&log);
        prop_assert!(trace.requests.len() <= 8);
    }
}
