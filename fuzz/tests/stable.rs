//! Every target with its whole corpus, and then with changed inputs for a time, on the pinned compiler.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use unwindlab_fuzz::{TARGETS, Target, mutate};
use unwindlab_oracle::trace::Recording;

/// The longest that one input may take, on a machine that is busy.
const LONGEST: Duration = Duration::from_secs(10);

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target, by name.
fn inputs(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus().join(target.name);
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    };
    files.into_iter().map(read).collect()
}

/// How long to change inputs: `UNWINDLAB_FUZZ_SECONDS` for each target.
fn time() -> Duration {
    let seconds = std::env::var("UNWINDLAB_FUZZ_SECONDS").unwrap_or_default();
    let seconds = match seconds.as_str() {
        "" => 2.0,
        text => text.parse().expect("UNWINDLAB_FUZZ_SECONDS is no number"),
    };
    Duration::from_secs_f64(seconds)
}

/// Runs the target; what is wrong, in words.
fn run(target: &Target, data: &[u8]) -> Result<(), String> {
    let begin = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    let took = begin.elapsed();
    match ended {
        Ok(()) if took <= LONGEST => Ok(()),
        Ok(()) => Err(format!("took {took:.1?}")),
        Err(_) => Err("panicked".to_owned()),
    }
}

/// Runs a target with its corpus and then with changed inputs. Returns how many.
fn fuzz(target: &Target, time: Duration) -> Result<u64, String> {
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "{} has no corpus", target.name);
    for (path, data) in &inputs {
        run(target, data).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    let seeds: Vec<Vec<u8>> = inputs.into_iter().map(|(_, data)| data).collect();
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let end = Instant::now() + time;
    let mut runs = 0;
    while Instant::now() < end {
        let data = mutate::mutated(&seeds, target.longest, &mut random);
        runs += 1;
        run(target, &data).map_err(|why| {
            let kept =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{seed:016x}", target.name));
            fs::write(&kept, &data).expect("cannot keep the input");
            format!("{}: {why} with {}", target.name, kept.display())
        })?;
    }
    Ok(runs)
}

#[test]
fn no_input_is_too_much() {
    let (time, left) = (time(), Mutex::new(TARGETS.iter()));
    let wrong = Mutex::new(Vec::new());
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(target) = left.lock().unwrap().next() else {
                        return;
                    };
                    match fuzz(target, time) {
                        Ok(runs) => println!("{}: {runs} changed inputs", target.name),
                        Err(why) => wrong.lock().unwrap().push(why),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// postcard has no names: what was packed before a field came is another recording, or none.
#[test]
fn packed_recordings_are_of_this_version() {
    let packed = inputs(unwindlab_fuzz::find("recording").unwrap());
    for (path, json) in inputs(unwindlab_fuzz::find("recording-json").unwrap()) {
        let Some((_, bytes)) = packed
            .iter()
            .find(|(it, _)| it.file_name() == path.file_name())
        else {
            continue;
        };
        let seed: Recording = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            postcard::from_bytes::<Recording>(bytes).as_ref(),
            Ok(&seed),
            "make it again: fuzz/examples/seeds.rs of {}",
            path.display()
        );
    }
}

#[test]
fn the_corpus_is_that_of_the_targets_and_small() {
    let mut bytes = 0;
    for folder in fs::read_dir(corpus()).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let target = unwindlab_fuzz::find(&name).unwrap_or_else(|| panic!("no target {name}"));
        for (path, data) in inputs(target) {
            assert!(
                data.len() <= target.longest,
                "{} is too long",
                path.display()
            );
            bytes += data.len();
        }
    }
    assert!(bytes <= 1 << 20, "{bytes} bytes");
}
