//! What the module above promises.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::entries::MANIFEST;
use super::*;
use crate::Silent;

/// Set for a second process: its cache.
const PLACE: &str = "UNWINDLAB_TEST_PLACE";

fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
    (folder, cache)
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

fn publish(cache: &Cache, id: &str, content: &str) -> Entry<String> {
    let scratch = cache.scratch().unwrap();
    fs::write(scratch.path().join("file"), content).unwrap();
    cache
        .publish(scratch, "kind", id, "about".to_owned())
        .unwrap()
}

#[test]
fn the_place_is_chosen_in_order() {
    let place = |set: &[(&str, &str)]| {
        default_place(|name| {
            let value = set.iter().find(|(key, _)| *key == name);
            value.map(|(_, value)| value.into())
        })
    };
    let home = ("HOME", "/home/a");
    assert_eq!(place(&[]), None);
    assert_eq!(place(&[home]), Some("/home/a/.cache/unwindlab".into()));
    assert_eq!(
        place(&[home, ("XDG_CACHE_HOME", "/x")]),
        Some("/x/unwindlab".into())
    );
    assert_eq!(
        place(&[home, ("XDG_CACHE_HOME", "/x"), (CACHE_VARIABLE, "/u")]),
        Some("/u".into())
    );
    assert_eq!(
        place(&[home, ("XDG_CACHE_HOME", ""), (CACHE_VARIABLE, "")]),
        Some("/home/a/.cache/unwindlab".into())
    );
}

#[test]
fn an_entry_is_there_when_it_is_whole() {
    let (_folder, cache) = cache();
    assert!(cache.find::<String>("kind", "1").unwrap().is_none());
    publish(&cache, "1", "content");
    let found = cache.find::<String>("kind", "1").unwrap().unwrap();
    assert_eq!(found.about, "about");
    assert_eq!(fs::read(found.dir.join("file")).unwrap(), b"content");
    assert_eq!(count(&cache.root().join("tmp")), 0);
    assert_eq!(cache.all::<String>("kind").unwrap().len(), 1);
    assert_eq!(cache.all::<String>("other").unwrap().len(), 0);
}

#[test]
fn a_damaged_entry_is_no_entry_and_can_be_made_again() {
    let (_folder, cache) = cache();
    let find = || cache.find::<String>("kind", "1").unwrap();
    let dir = publish(&cache, "1", "content").dir;
    for damage in ["cut", "gone", "manifest"] {
        match damage {
            "cut" => fs::write(dir.join("file"), "cont").unwrap(),
            "gone" => fs::remove_file(dir.join("file")).unwrap(),
            _ => fs::write(dir.join(MANIFEST), "{").unwrap(),
        }
        assert!(find().is_none(), "{damage}");
        publish(&cache, "1", "content");
        assert!(find().is_some(), "{damage}");
    }
    assert_eq!(count(&cache.root().join("tmp")), 0);
}

#[test]
fn notes_are_kept() {
    let (_folder, cache) = cache();
    assert!(cache.note::<u32>("n").unwrap().is_none());
    cache.set_note("n", &7_u32).unwrap();
    cache.set_note("n", &8_u32).unwrap();
    let note = cache.note::<u32>("n").unwrap().unwrap();
    assert_eq!(note.fact, 8);
    assert!(note.age < Duration::from_secs(60));
    fs::write(cache.note_path("n"), "nonsense").unwrap();
    assert!(cache.note::<u32>("n").unwrap().is_none());
    assert_eq!(count(&cache.root().join("tmp")), 0);
}

#[test]
fn what_is_in_use_stays_and_what_is_left_over_goes() {
    let (_folder, cache) = cache();
    let mine = cache.scratch().unwrap();
    let left = cache.root().join("tmp/left-over");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("half"), "x").unwrap();
    Cache::open(Some(cache.root().to_path_buf())).unwrap();
    assert!(mine.path().exists());
    assert!(!left.exists());
    let path = mine.path().to_path_buf();
    drop(mine);
    assert!(!path.exists());
}

#[test]
fn a_second_run_waits_and_says_so() {
    struct Steps(RefCell<Vec<String>>, mpsc::Sender<()>);
    impl Progress for Steps {
        fn step(&self, what: &str) {
            self.0.borrow_mut().push(what.to_owned());
            self.1.send(()).unwrap();
        }
        fn bytes(&self, _done: u64, _total: u64) {}
    }
    let (_folder, cache) = cache();
    let held = cache.lock("key", &Silent).unwrap();
    // Another key is free.
    cache.lock("other", &Silent).unwrap();
    let (waits, waiting) = mpsc::channel();
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let steps = Steps(RefCell::default(), waits);
            cache.lock("key", &steps).unwrap();
            steps.0.into_inner()
        });
        waiting.recv().unwrap();
        drop(held);
        let steps = second.join().unwrap();
        assert_eq!(steps.len(), 1);
        assert!(
            steps[0].starts_with("waiting for another unwindlab"),
            "{steps:?}"
        );
    });
}

/// What the second process of the tests below does; does nothing in an ordinary run.
#[test]
fn second_process() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let cache = Cache::open(Some(place.into())).unwrap();
    let _lock = cache.lock("key", &Silent).unwrap();
    let scratch = cache.scratch().unwrap();
    fs::write(scratch.path().join("half"), "x").unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("1000").stdout(Stdio::null());
    crate::child::end_with_us(&mut sleep);
    let mut sleep = sleep.spawn().unwrap();
    println!("\nready {}", sleep.id());
    sleep.wait().unwrap();
}

/// Starts [`second_process`] and waits until it holds the lock, a half-made entry and a child.
fn start_second(cache: &Cache) -> (Child, u32) {
    let mut second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache::tests::second_process", "--nocapture"])
        .env(PLACE, cache.root())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(second.stdout.take().unwrap()).lines();
    let sleep = lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("ready ")?.parse().ok())
        .unwrap();
    (second, sleep)
}

#[test]
fn a_killed_process_leaves_nothing() {
    let (_folder, cache) = cache();
    let (mut second, sleep) = start_second(&cache);
    assert_eq!(count(&cache.root().join("tmp")), 1);
    // It is alive: what it makes stays.
    Cache::open(Some(cache.root().to_path_buf())).unwrap();
    assert_eq!(count(&cache.root().join("tmp")), 1);

    second.kill().unwrap();
    second.wait().unwrap();
    cache.lock("key", &Silent).unwrap();
    Cache::open(Some(cache.root().to_path_buf())).unwrap();
    assert_eq!(count(&cache.root().join("tmp")), 0);
    assert_eq!(count(&cache.root().join("entries")), 0);
    // Its child got a signal; whoever inherits it takes a moment to reap it.
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{sleep}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('Z'))
    };
    for _ in 0..500 {
        if state().unwrap_or(true) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the child of a killed process lives on");
}

#[test]
fn errors_say_what_to_do() {
    let path = Path::new("/cache/x");
    let message = |kind: ErrorKind| CacheError::new(path, kind.into()).to_string();
    for (kind, part) in [
        (
            ErrorKind::StorageFull,
            "no space left for /cache/x: free some",
        ),
        (ErrorKind::QuotaExceeded, "no space left"),
        (ErrorKind::PermissionDenied, "no permission for /cache/x"),
        (ErrorKind::ReadOnlyFilesystem, "read-only file system"),
        (ErrorKind::IsADirectory, "cannot use /cache/x"),
    ] {
        let message = message(kind);
        assert!(message.contains(part), "{message}");
        assert!(!message.contains('\n'));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Cache::open(Some(file)).unwrap_err();
    assert!(matches!(error, CacheError::Io { .. }), "{error}");
}
