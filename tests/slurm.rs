//! `ci/slurm/sweep.sbatch` in a Slurm that the test starts, with everything in a folder of its own: eight tasks, of which one
//! is killed and requeued, are the sweep that one machine makes.
//!
//! Needs Debian's `slurm-wlm` and `munge`, the stock kernel and a KVM host.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::said;
use serde_json::Value;
use tempfile::TempDir;

const SWEEP: [&str; 4] = ["nmi-in-syscall", "--pairs", "--function", "do_syscall_64"];
const PARTS: u32 = 8;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// A Slurm with one node, this machine.
struct Slurm {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start() -> Self {
        let mut slurm = Self {
            folder: TempDir::new().unwrap(),
            daemons: Vec::new(),
        };
        let folder = slurm.folder.path().to_owned();
        let at = |name: &str| folder.join(name).display().to_string();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        for name in ["munge", "state", "spool", "results"] {
            fs::create_dir(folder.join(name)).unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        let key: Vec<u8> = fs::read("/proc/sys/kernel/random/uuid").unwrap().repeat(8);
        fs::write(folder.join("key"), key).unwrap();
        fs::set_permissions(folder.join("key"), Permissions::from_mode(0o400)).unwrap();
        let socket = at("munge/socket");
        slurm.daemon(Command::new("munged").args([
            "--foreground",
            &format!("--key-file={}", at("key")),
            &format!("--socket={socket}"),
            &format!("--pid-file={}", at("munge/pid")),
            &format!("--log-file={}", at("munge/log")),
            &format!("--seed-file={}", at("munge/seed")),
        ]));
        slurm.until("munged listens", || Path::new(&socket).exists());
        fs::write(folder.join("slurm.conf"), configuration(&at)).unwrap();
        slurm.daemon(Command::new("slurmctld").args(["-D", "-c"]));
        slurm.daemon(Command::new("slurmd").arg("-D"));
        slurm.until("the node is idle", || {
            let output = slurm.run("sinfo", &["--noheader", "--format=%T"]);
            String::from_utf8_lossy(&output.stdout).trim() == "idle"
        });
        slurm
    }

    fn daemon(&mut self, command: &mut Command) {
        let log = fs::File::create(
            self.folder
                .path()
                .join(format!("log-{}", self.daemons.len())),
        );
        let child = command
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        self.daemons.push(child.unwrap());
    }

    /// A command of Slurm's, in the folder of results.
    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let tested = Path::new(env!("CARGO_BIN_EXE_unwindlab")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        Command::new(program)
            .args(arguments)
            .current_dir(self.folder.path().join("results"))
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .env("PATH", format!("{}:{path}", tested.display()))
            .output()
            .unwrap()
    }

    fn ran(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        assert!(output.status.success(), "{program}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is() {
            if begin.elapsed() > PATIENCE {
                let logs = (0..3).map(|it| self.folder.path().join(format!("log-{it}")));
                let logs: Vec<_> = logs.map(fs::read_to_string).collect();
                panic!("{what} did not happen: {logs:?}");
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// The file of a part, if it is there.
    fn part(&self, number: u32) -> Option<Value> {
        let file = self
            .folder
            .path()
            .join(format!("results/part-{number}.json"));
        serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
    }

    /// Kills the command of a part, by its id.
    fn kill(&self, number: u32) {
        let results = self.folder.path().join("results");
        let file = format!("part-{number}.json");
        let is_it = |process: &Path| {
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let mut words = command.split(|it| *it == 0);
            fs::read_link(process.join("cwd")).is_ok_and(|it| it == results)
                && words.any(|it| it == file.as_bytes())
        };
        let processes = fs::read_dir("/proc").unwrap();
        let mut processes = processes.map(|it| it.unwrap().path());
        let process = processes.find(|it| is_it(it)).expect("the command runs");
        let id = process.file_name().unwrap();
        let killed = Command::new("kill").arg("-KILL").arg(id).status();
        assert!(killed.unwrap().success());
    }

    /// The state of a task.
    fn state(&self, task: &str) -> String {
        let told = self.ran("scontrol", &["show", "job", task]);
        let state = told
            .split_whitespace()
            .find_map(|it| it.strip_prefix("JobState="));
        state.unwrap_or_default().to_owned()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let _ = self.run("scancel", &["--name=unwindlab"]);
        for _ in 0..100 {
            let jobs = self.run("squeue", &["--noheader"]).stdout;
            if jobs.is_empty() {
                break;
            }
            sleep(Duration::from_millis(100));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A requeued task begins when the credential of its first start has expired, which takes 120 s by default.
fn configuration(at: &dyn Fn(&str) -> String) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap().to_owned();
    let user = Command::new("id").arg("-un").output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    // Both are bound until both are known.
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [control, node] = ports.each_ref().map(|it| it.local_addr().unwrap().port());
    format!(
        "ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=10
SlurmctldPort={control}
SlurmdPort={node}
SlurmctldPidFile={control_pid}
SlurmdPidFile={node_pid}
StateSaveLocation={state}
SlurmdSpoolDir={spool}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
",
        user = user.trim(),
        socket = at("munge/socket"),
        control_pid = at("slurmctld.pid"),
        node_pid = at("slurmd.pid"),
        state = at("state"),
        spool = at("spool"),
        cpus = std::thread::available_parallelism().unwrap(),
    )
}

/// What identifies the trials of a record, and the failures with those that show them.
fn trials(record: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let point = |it: &Value| format!("{} {}", it["at"], it["then"]["at"]);
    let points =
        |it: &Value| -> BTreeSet<String> { it.as_array().unwrap().iter().map(point).collect() };
    let failures = record["failures"].as_array().unwrap().iter();
    let failures = failures.map(|it| format!("{} {:?}", it["fell"], points(&it["points"])));
    (points(&record["tried"]), failures.collect())
}

#[test]
fn an_array_of_eight_tasks_is_the_sweep_though_one_was_killed() {
    let installed = ["slurmctld", "slurmd", "munged"].iter().all(|program| {
        let found = Command::new(program).arg("-V").output();
        found.is_ok_and(|it| it.status.success())
    });
    if !installed {
        // Not by the macro, whose output a test that passes does not show.
        let _ = std::io::stderr()
            .write_all(b"NOT RUN: no Slurm (Debian's packages `slurm-wlm` and `munge`)\n");
        return;
    }
    let slurm = Slurm::start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("ci/slurm/sweep.sbatch");
    let arguments = [&["--parsable", script.to_str().unwrap()], SWEEP.as_slice()].concat();
    let job = slurm.ran("sbatch", &arguments).trim().to_owned();

    // The first task that has begun its trials is killed.
    let mut killed = None;
    slurm.until("a task begins its trials", || {
        let begun = |it: &u32| {
            slurm
                .part(*it)
                .is_some_and(|it| it["left"]["ended"] == false)
        };
        killed = (1..=PARTS).find(begun);
        killed.is_some()
    });
    let number = killed.unwrap();
    let task = format!("{job}_{number}");
    slurm.kill(number);
    slurm.until("the task is over", || slurm.state(&task) == "FAILED");
    let left = slurm.part(number).unwrap();
    assert_eq!(left["left"]["ended"], false, "it was killed in the middle");
    let parts: Vec<String> = (1..=PARTS).map(|it| format!("part-{it}.json")).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();

    // The others come to their end; together they are no pass.
    let all_over = || {
        let left = slurm.ran("squeue", &["--noheader"]);
        left.trim().is_empty()
    };
    slurm.until("the other tasks are over", all_over);
    let merge = |json: &str| {
        let arguments = [&["merge", "--json", json], parts.as_slice()].concat();
        slurm.run(env!("CARGO_BIN_EXE_unwindlab"), &arguments)
    };
    let output = merge("some.json");
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    let lacks = format!("NOT COMPLETE: part {number}/{PARTS} did not come to its end");
    assert!(said(&output).contains(&lacks), "{}", said(&output));

    slurm.ran("scontrol", &["requeue", &task]);
    slurm.until("the task is requeued", || slurm.state(&task) != "FAILED");
    slurm.until("the task is over", all_over);
    assert_eq!(slurm.state(&task), "COMPLETED");
    let output = merge("all.json");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));

    let whole = [&["sweep"], SWEEP.as_slice(), &["--resume", "whole.json"]].concat();
    let output = slurm.run(env!("CARGO_BIN_EXE_unwindlab"), &whole);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let read = |name: &str| -> Value {
        let file = slurm.folder.path().join("results").join(name);
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    };
    let (all, whole) = (read("all.json"), read("whole.json"));
    assert_eq!(trials(&all), trials(&whole));
    assert_eq!(all["pairs"], whole["pairs"]);
    println!("{} pairs, part {number} killed", trials(&all).0.len());
}
