//! What the module above promises.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::contents::Contents;
use super::digests::Digests;
use super::entries::MANIFEST;
use super::*;
use crate::Silent;
use crate::progress::Stopped;

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
    let damages = [
        ("cut", "file has 4 bytes instead of 7"),
        (
            "other",
            "file has the SHA-256 7f386f32adea... instead of ed7002b439e9...",
        ),
        ("gone", "file cannot be read: No such file"),
        ("more", "lib/more does not belong to it"),
        ("link", "more does not belong to it"),
        ("file for a link", "file cannot be read: No such file"),
        ("manifest", ""),
    ];
    for (damage, named) in damages {
        match damage {
            "cut" => fs::write(dir.join("file"), "cont").unwrap(),
            "other" => fs::write(dir.join("file"), "contant").unwrap(),
            "gone" => fs::remove_file(dir.join("file")).unwrap(),
            "more" => {
                fs::create_dir(dir.join("lib")).unwrap();
                fs::write(dir.join("lib/more"), "more").unwrap();
            }
            "link" => std::os::unix::fs::symlink("file", dir.join("more")).unwrap(),
            "file for a link" => fs::rename(dir.join("file"), dir.join("other")).unwrap(),
            _ => fs::write(dir.join(MANIFEST), "{").unwrap(),
        }
        if !named.is_empty() {
            let manifest = fs::read(dir.join(MANIFEST)).unwrap();
            let contents: Contents = serde_json::from_slice(&manifest).unwrap();
            let told = contents.damage(&dir, &mut Digests::none());
            let told = told.unwrap().unwrap().to_string();
            assert!(told.starts_with(named), "{damage}: {told}");
        }
        assert!(find().is_none(), "{damage}");
        publish(&cache, "1", "content");
        assert!(find().is_some(), "{damage}");
    }
    assert_eq!(count(&cache.root().join("tmp")), 0);
    assert_eq!(
        count(&cache.root().join("damaged")),
        1,
        "the last one is kept"
    );
}

/// As a saved machine, which is kept in place of an earlier one of its name.
#[test]
fn what_was_replaced_since_its_manifest_was_read_is_no_damage() {
    let (_folder, cache) = cache();
    publish(&cache, "1", "earlier");
    let read = cache.read::<String>("kind", "1").unwrap();
    let (earlier, contents) = read.unwrap();
    cache.remove(&earlier.dir).unwrap();
    publish(&cache, "1", "later");
    assert_eq!(cache.set_aside(&earlier.dir, &contents).unwrap(), None);
    assert!(cache.find::<String>("kind", "1").unwrap().is_some());
    assert_eq!(count(&cache.root().join("damaged")), 0);
}

#[test]
fn a_link_that_says_something_else_is_damage() {
    let (_folder, cache) = cache();
    let scratch = cache.scratch().unwrap();
    fs::write(scratch.path().join("file"), "content").unwrap();
    let link = |dir: &Path, to: &str| std::os::unix::fs::symlink(to, dir.join("link")).unwrap();
    link(scratch.path(), "file");
    let dir = cache.publish(scratch, "kind", "1", ()).unwrap().dir;
    let find = || cache.find::<()>("kind", "1").unwrap();
    assert!(find().is_some());
    fs::remove_file(dir.join("link")).unwrap();
    link(&dir, "fild");
    assert!(find().is_none());
}

#[test]
fn every_entry_is_verified_and_the_damaged_ones_are_named() {
    let (_folder, cache) = cache();
    publish(&cache, "1", "content");
    let dir = publish(&cache, "2", "content").dir;
    let verify = || cache.verify(&Silent).unwrap();
    assert_eq!((verify().whole, verify().damaged.len()), (2, 0));
    fs::write(dir.join("file"), "contant").unwrap();
    let verified = verify();
    assert_eq!(verified.whole, 1);
    let [damaged] = &verified.damaged[..] else {
        panic!("{:?}", verified.damaged);
    };
    assert!(
        damaged.starts_with("kind-2: file has the SHA-256"),
        "{damaged}"
    );
    assert!(!dir.exists());
    assert_eq!((verify().whole, verify().damaged.len()), (1, 0));
}

#[test]
fn a_cache_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, cache) = cache();
    for folder in ["", "entries"] {
        let path = cache.root().join(folder);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Cache::open(Some(cache.root().to_path_buf())).unwrap_err();
        assert!(matches!(error, CacheError::WritableByOthers(_)), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    Cache::open(Some(cache.root().to_path_buf())).unwrap();
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

#[test]
fn a_wait_for_a_lock_ends_when_the_user_wants_to_stop() {
    let (_folder, cache) = cache();
    // A lock that is free needs no wait.
    let held = cache.lock("key", &Stopped).unwrap();
    let stopped = cache.lock("key", &Stopped);
    assert!(matches!(stopped, Err(CacheError::Stopped)), "{stopped:?}");
    drop(held);
    cache.lock("key", &Stopped).unwrap();
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
    let sleep = |with_us: fn(&mut Command)| {
        let mut sleep = Command::new("sleep");
        sleep
            .arg("1000")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        with_us(&mut sleep);
        sleep.spawn().unwrap()
    };
    let mut runs = sleep(crate::child::end_with_us);
    let mut stopped = sleep(crate::child::die_with_us);
    kill_process(Pid::from_child(&stopped), Signal::STOP).unwrap();
    println!("\nready {} {}", runs.id(), stopped.id());
    runs.wait().unwrap();
    stopped.wait().unwrap();
}

/// Starts [`second_process`] and waits until it holds the lock, a half-made entry and two children, the second
/// of which is stopped.
fn start_second(cache: &Cache) -> (Child, [u32; 2]) {
    let mut second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache::tests::second_process", "--nocapture"])
        .env(PLACE, cache.root())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(second.stdout.take().unwrap()).lines();
    let ready = lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("ready ").map(str::to_owned));
    let (runs, stopped) = ready.as_deref().unwrap().split_once(' ').unwrap();
    let children = [runs, stopped].map(|id| id.parse().unwrap());
    (second, children)
}

#[test]
fn a_killed_process_leaves_nothing() {
    let (_folder, cache) = cache();
    let (mut second, children) = start_second(&cache);
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
    // Its children got a signal; whoever inherits them takes a moment to reap them.
    let is_gone = |child: &u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ");
        state.is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    for _ in 0..500 {
        if children.iter().all(is_gone) {
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

/// What a child that is just being started holds: a copy of the lock's descriptor.
#[test]
fn a_lock_is_over_when_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(folder.path().to_owned())).unwrap();
    let lock = cache.lock("a", &Silent).unwrap();
    let _of_a_child = lock.0.try_clone().unwrap();
    assert!(cache.try_lock("a").unwrap().is_none());
    drop(lock);
    assert!(cache.try_lock("a").unwrap().is_some());
}
