//! A command line that is measured, as a process of its own. Whatever happens, none of its processes is left behind.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead as _, BufReader, PipeReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_guest_kernel::child::end_with_us;

/// From one look at a process to the next.
const LOOK: Duration = Duration::from_millis(50);
/// How long processes that were told to end are waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Lines that are kept of what it says.
const LINES: usize = 20;
/// Clock ticks a second in /proc: `USER_HZ` of x86, whatever the kernel's own are.
const TICKS: f64 = 100.0;

/// A command that succeeded.
#[derive(Debug, Clone)]
pub struct Ended {
    /// From its start to the end of its last process, in seconds.
    pub seconds: f64,
    /// CPU time of all its processes, user and system, in seconds.
    pub cpu_seconds: f64,
    /// What it said last.
    pub lines: VecDeque<String>,
}

/// Why a command is no measurement.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub enum CommandError {
    /// It cannot be started, or watched.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It did not succeed: it takes another time than one that does.
    #[error("it ended with {status}: {last_line}")]
    Failed {
        status: ExitStatus,
        last_line: String,
    },
    /// The user stopped it.
    #[error("interrupted")]
    Interrupted,
}

impl Ended {
    /// The KVM host of a command of this program, as its last line has it.
    #[must_use]
    pub fn kvm_host(&self) -> Option<&str> {
        let mut lines = self.lines.iter().rev();
        lines.find_map(|line| Some(line.split_once("KVM host ")?.1))
    }
}

/// Runs a command to its end; stops it with us.
///
/// # Errors
/// [`CommandError`].
pub fn run(mut command: Command, interrupt: &Interrupt) -> Result<Ended, CommandError> {
    if interrupt.is_set() {
        return Err(CommandError::Interrupted);
    }
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    // A terminal's Ctrl-C is for us: we pass it on once. A second one would have the command end at once.
    command.process_group(0);
    end_with_us(&mut command);
    let cpu_before = cpu_seconds_of_children()?;
    let begin = Instant::now();
    let mut child = command.spawn()?;
    // It has our ends of the pipe.
    drop(command);
    let (status, heard) = thread::scope(|scope| {
        let heard = scope.spawn(|| listen(reader, begin));
        let status = wait(&mut child, interrupt);
        end_group(Pid::from_child(&child));
        (status, heard.join())
    });
    let (seconds, lines) = heard.map_err(|_| io::Error::other("its words were not heard"))??;
    let status = status?;
    if interrupt.is_set() {
        return Err(CommandError::Interrupted);
    }
    match status.success() {
        true => Ok(Ended {
            seconds,
            cpu_seconds: cpu_seconds_of_children()? - cpu_before,
            lines,
        }),
        false => Err(CommandError::Failed {
            status,
            last_line: lines.back().cloned().unwrap_or_default(),
        }),
    }
}

/// What it says, until all its processes have ended, and when that was.
fn listen(reader: PipeReader, begin: Instant) -> io::Result<(f64, VecDeque<String>)> {
    let mut reader = BufReader::new(reader);
    let (mut lines, mut bytes) = (VecDeque::new(), Vec::new());
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if line.is_empty() {
            continue;
        }
        lines.push_back(line);
        if lines.len() > LINES {
            lines.pop_front();
        }
    }
    Ok((begin.elapsed().as_secs_f64(), lines))
}

/// Waits for it. Once the user wants to stop, it is told to end, and ended if it does not.
fn wait(child: &mut Child, interrupt: &Interrupt) -> io::Result<ExitStatus> {
    let mut told: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match told {
            None if interrupt.is_set() => {
                told = Some(Instant::now());
                kill_process(Pid::from_child(child), Signal::TERM)?;
            }
            Some(at) if at.elapsed() > PATIENCE => child.kill()?,
            _ => {}
        }
        thread::sleep(LOOK);
    }
}

/// Ends what the command has left behind.
fn end_group(group: Pid) {
    let begin = Instant::now();
    if kill_process_group(group, Signal::TERM) == Err(Errno::SRCH) {
        return;
    }
    while test_kill_process_group(group).is_ok() {
        if begin.elapsed() > PATIENCE {
            // None is left, or none of ours.
            let _ = kill_process_group(group, Signal::KILL);
            return;
        }
        thread::sleep(LOOK);
    }
}

/// CPU time of all processes that ended below us.
fn cpu_seconds_of_children() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    // proc_pid_stat(5): fields 16 and 17; the second is a name in brackets.
    let behind_name = text.rsplit_once(')').map_or("", |it| it.1);
    let ticks = behind_name.split_whitespace().skip(13).take(2);
    let ticks: Result<Vec<f64>, _> = ticks.map(str::parse).collect();
    match ticks.as_deref() {
        Ok([user, system]) => Ok((user + system) / TICKS),
        _ => Err(io::Error::other("/proc/self/stat has no CPU time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, interrupt: &Interrupt) -> Result<Ended, CommandError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, interrupt)
    }

    #[test]
    fn what_it_says_last_is_kept_of_both_streams() {
        let script = "seq 100; echo on 7.3, KVM host emulated >&2; echo; true";
        let ended = shell(script, &Interrupt::default()).unwrap();
        assert_eq!(ended.lines.len(), LINES);
        assert_eq!(ended.kvm_host(), Some("emulated"));
        assert!(ended.seconds > 0.0 && ended.cpu_seconds >= 0.0);
    }

    #[test]
    fn a_command_that_fails_is_no_measurement() {
        let error = shell("echo why; exit 3", &Interrupt::default()).unwrap_err();
        assert_eq!(error.to_string(), "it ended with exit status: 3: why");
    }

    #[test]
    fn what_a_command_leaves_behind_is_ended() {
        let script = "sleep 1000 & echo $!";
        let ended = shell(script, &Interrupt::default()).unwrap();
        let pid = ended.lines.back().unwrap();
        assert!(!is_running(pid), "{pid}");
    }

    #[test]
    fn a_command_ends_when_the_user_wants_to_stop() {
        let interrupt = Interrupt::default();
        let stopped = interrupt.clone();
        let stop = thread::spawn(move || {
            thread::sleep(2 * LOOK);
            stopped.set();
        });
        let error = shell("sleep 1000 & sleep 1000", &interrupt).unwrap_err();
        stop.join().unwrap();
        assert!(matches!(error, CommandError::Interrupted), "{error}");
    }

    /// Whether it is there and no zombie.
    fn is_running(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|it| !it.contains(") Z "))
    }
}
