//! The part of QEMU's monitor protocol that saving a machine needs (docs/interop/qmp-spec.rst of QEMU): a
//! JSON object a line, one answer for each command, events between them.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::interrupt::Interrupt;
use crate::text::printable;

/// How long a monitor's answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Size in bytes of the disk, which is there only for snapshots; they do not count.
const DISK: u64 = 1 << 20;
/// The job that makes the disk.
const JOB: &str = "make";
/// What writes a machine's state.
const MIGRATION: &str = "migrate";

/// Why the monitor did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The connection failed, or no answer came in time.
    #[error("its monitor: {0}")]
    Io(#[from] io::Error),
    /// QEMU closed the connection.
    #[error("its monitor is gone")]
    Closed,
    /// A line is no JSON.
    #[error("its monitor says `{0}`")]
    Garbled(String),
    /// The first line is no greeting.
    #[error("greets with {0}")]
    Greeting(Value),
    /// A command or a job failed.
    #[error("{command}: {reason}")]
    Refused {
        /// What was asked.
        command: String,
        /// What it says.
        reason: String,
    },
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// The job is not in the list of jobs.
    #[error("no job {JOB}")]
    NoJob,
    /// A job or a migration does not end.
    #[error("{0} takes too long")]
    Slow(&'static str),
}

impl QmpError {
    fn refused(command: &str, reason: &str) -> Self {
        Self::Refused {
            command: command.to_owned(),
            reason: printable(reason),
        }
    }
}

/// A connection to a monitor.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Takes the greeting, and answers it.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn open(stream: UnixStream) -> Result<Self, QmpError> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Greeting(greeting));
        }
        qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Carries out a command; its `return`.
    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string();
        self.stream
            .get_mut()
            .write_all(format!("{text}\n").as_bytes())?;
        loop {
            let answer = self.line()?;
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                let text = error.get("desc").and_then(Value::as_str);
                return Err(QmpError::refused(command, text.unwrap_or("refused")));
            }
        }
    }

    /// Carries out a command of the monitor for people, which answers in text.
    ///
    /// # Errors
    /// [`QmpError`]; text that contains `Error` is one.
    pub fn human(&mut self, line: &str) -> Result<String, QmpError> {
        let said = self.ask("human-monitor-command", &json!({ "command-line": line }))?;
        let said = said.as_str().unwrap_or_default().trim();
        match said.contains("Error") {
            true => Err(QmpError::refused(line, said)),
            false => Ok(said.to_owned()),
        }
    }

    /// Writes all of the machine's state to a set of file descriptors that QEMU was started with
    /// (`-add-fd`). RAM comes to fixed places (QEMU's docs/devel/migration/mapped-ram.rst), if QEMU was started with that
    /// capability. The machine, which stops over it, stays stopped until [`Self::go_on`]; what goes on from the state runs at once, for
    /// it was not stopped by hand.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn save_to(&mut self, set: u32, interrupt: &Interrupt) -> Result<(), QmpError> {
        let uri = format!("file:/dev/fdset/{set}");
        self.ask("migrate", &json!({ "uri": uri }))?;
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_LIMIT {
            let state = self.ask("query-migrate", &json!({}))?;
            let text = |key| state.get(key).and_then(Value::as_str);
            match text("status") {
                // It is `completed` a little before the machine may go on: `cont` is refused until then (qmp_cont(), monitor/qmp-cmds.c).
                Some("completed") if !self.is_finishing()? => return Ok(()),
                Some("failed" | "cancelled") => {
                    let reason = text("error-desc").unwrap_or("failed");
                    return Err(QmpError::refused(MIGRATION, reason));
                }
                _ if interrupt.is_set() => return Err(QmpError::Interrupted),
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(QmpError::Slow(MIGRATION))
    }

    /// Whether QEMU's run state is still that of a migration.
    fn is_finishing(&mut self) -> Result<bool, QmpError> {
        let state = self.ask("query-status", &json!({}))?;
        Ok(state.get("status").and_then(Value::as_str) == Some("finish-migrate"))
    }

    /// Has a stopped machine run again.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn go_on(&mut self) -> Result<(), QmpError> {
        self.ask("cont", &json!({})).map(drop)
    }

    /// Turns an empty file into an image that takes snapshots, and adds it.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn add_snapshot_disk(&mut self, file: &str) -> Result<(), QmpError> {
        let node = json!({ "driver": "file", "node-name": "file", "filename": file });
        self.ask("blockdev-add", &node)?;
        let options = json!({ "driver": "qcow2", "file": "file", "size": DISK });
        let job = json!({ "job-id": JOB, "options": options });
        self.ask("blockdev-create", &job)?;
        self.wait_for_job()?;
        let node = json!({ "driver": "qcow2", "node-name": "snapshots", "file": "file" });
        self.ask("blockdev-add", &node)?;
        Ok(())
    }

    fn wait_for_job(&mut self) -> Result<(), QmpError> {
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_LIMIT {
            let jobs = self.ask("query-jobs", &json!({}))?;
            let jobs = jobs.as_array().map(Vec::as_slice).unwrap_or_default();
            fn text<'a>(job: &'a Value, key: &str) -> Option<&'a str> {
                job.get(key).and_then(Value::as_str)
            }
            let job = jobs.iter().find(|job| text(job, "id") == Some(JOB));
            let job = job.ok_or(QmpError::NoJob)?;
            if let Some(error) = text(job, "error") {
                return Err(QmpError::refused(JOB, error));
            }
            if text(job, "status") == Some("concluded") {
                self.ask("job-dismiss", &json!({ "id": JOB }))?;
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(QmpError::Slow(JOB))
    }

    fn line(&mut self) -> Result<Value, QmpError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(QmpError::Closed),
            _ => serde_json::from_str(&line).map_err(|_| QmpError::Garbled(printable(&line))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor that answers with these lines, whatever the command.
    fn monitor(lines: &[&str]) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let text = lines.iter().map(|line| format!("{line}\n"));
        theirs
            .write_all(text.collect::<String>().as_bytes())
            .unwrap();
        // Stays open, so that commands can be written.
        std::mem::forget(theirs);
        ours
    }

    const GREETING: &str = r#"{"QMP": {"version": {}}}"#;
    const DONE: &str = r#"{"return": {}}"#;

    #[test]
    fn answers_are_told_from_events() {
        let event = r#"{"event": "STOP"}"#;
        let lines = [GREETING, DONE, event, r#"{"return": ""}"#];
        let mut qmp = Qmp::open(monitor(&lines)).unwrap();
        assert_eq!(qmp.human("loadvm ready").unwrap(), "");
    }

    #[test]
    fn a_state_is_written_once_the_machine_may_go_on() {
        let completed = r#"{"return": {"status": "completed"}}"#;
        let finishing = r#"{"return": {"status": "finish-migrate"}}"#;
        let over = r#"{"return": {"status": "postmigrate"}}"#;
        let next = r#"{"return": "what is asked next"}"#;
        let lines = [
            GREETING, DONE, DONE, completed, finishing, completed, over, next,
        ];
        let mut qmp = Qmp::open(monitor(&lines)).unwrap();
        qmp.save_to(1, &Interrupt::default()).unwrap();
        assert_eq!(qmp.human("info status").unwrap(), "what is asked next");
    }

    #[test]
    fn what_went_wrong_is_said() {
        let refused = r#"{"error": {"class": "GenericError", "desc": "no such node"}}"#;
        let mut qmp = Qmp::open(monitor(&[GREETING, DONE, refused])).unwrap();
        let error = qmp.add_snapshot_disk("/x").unwrap_err().to_string();
        assert_eq!(error, "blockdev-add: no such node");

        let said = r#"{"return": "Error: Device has no medium\r\n"}"#;
        let mut qmp = Qmp::open(monitor(&[GREETING, DONE, said])).unwrap();
        let error = qmp.human("savevm ready").unwrap_err().to_string();
        assert!(error.contains("Device has no medium"), "{error}");

        assert!(
            Qmp::open(monitor(&["hello"]))
                .unwrap_err()
                .to_string()
                .contains("hello")
        );
        let (ours, _) = UnixStream::pair().unwrap();
        let error = Qmp::open(ours).unwrap_err().to_string();
        assert_eq!(error, "its monitor is gone");
    }
}
