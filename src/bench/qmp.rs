//! As much of QEMU's monitor protocol as snapshots take (docs/interop/qmp-spec.rst of QEMU): a JSON object a
//! line, one answer for each command, events between them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::qemu::ANSWER_LIMIT;

/// Size of the disk that holds nothing but snapshots, in bytes; they lie beyond it.
const DISK: u64 = 1 << 20;

/// A connection to a monitor.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Greets.
    ///
    /// # Errors
    /// In one line, as of all that follows.
    pub fn open(stream: UnixStream) -> Result<Self, String> {
        stream
            .set_read_timeout(Some(ANSWER_LIMIT))
            .map_err(|error| error.to_string())?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            return Err(format!("greets with {greeting}"));
        }
        qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Carries out a command; its `return`.
    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, String> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string();
        let stream = self.stream.get_mut();
        let sent = stream.write_all(format!("{text}\n").as_bytes());
        sent.map_err(|error| format!("{command}: {error}"))?;
        loop {
            let answer = self.line()?;
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                let text = error.get("desc").and_then(Value::as_str);
                return Err(format!("{command}: {}", text.unwrap_or("refused")));
            }
        }
    }

    /// Carries out a command of the monitor for people, which says something only where it failed or was
    /// asked to.
    pub fn human(&mut self, line: &str) -> Result<String, String> {
        let said = self.ask("human-monitor-command", &json!({ "command-line": line }))?;
        let said = said.as_str().unwrap_or_default().trim().to_owned();
        match said.contains("Error") {
            true => Err(format!("{line}: {}", crate::text::printable(&said))),
            false => Ok(said),
        }
    }

    /// Makes an image that takes snapshots out of an empty file, and adds it.
    pub fn add_snapshot_disk(&mut self, file: &str) -> Result<(), String> {
        let node = json!({ "driver": "file", "node-name": "file", "filename": file });
        self.ask("blockdev-add", &node)?;
        let options = json!({ "driver": "qcow2", "file": "file", "size": DISK });
        let job = json!({ "job-id": "make", "options": options });
        self.ask("blockdev-create", &job)?;
        self.wait_for_job("make")?;
        let node = json!({ "driver": "qcow2", "node-name": "snapshots", "file": "file" });
        self.ask("blockdev-add", &node)?;
        Ok(())
    }

    fn wait_for_job(&mut self, id: &str) -> Result<(), String> {
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_LIMIT {
            let jobs = self.ask("query-jobs", &json!({}))?;
            let jobs = jobs.as_array().map(Vec::as_slice).unwrap_or_default();
            let text = |job: &Value, key| job.get(key).and_then(Value::as_str).map(str::to_owned);
            let job = jobs
                .iter()
                .find(|job| text(job, "id").as_deref() == Some(id));
            let job = job.ok_or_else(|| format!("no job {id}"))?;
            if let Some(error) = text(job, "error") {
                return Err(format!("{id}: {error}"));
            }
            if text(job, "status").as_deref() == Some("concluded") {
                self.ask("job-dismiss", &json!({ "id": id }))?;
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(format!("{id} takes too long"))
    }

    fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("its monitor is gone".to_owned()),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|_| format!("its monitor says `{}`", crate::text::printable(&line))),
            Err(error) => Err(format!("its monitor: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor that says these lines, whatever it is asked.
    fn monitor(lines: &[&str]) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let text = lines.iter().map(|line| format!("{line}\n"));
        theirs
            .write_all(text.collect::<String>().as_bytes())
            .unwrap();
        // Kept open: what is asked has somewhere to go.
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
        assert_eq!(qmp.human("loadvm ready").as_deref(), Ok(""));
    }

    #[test]
    fn what_went_wrong_is_said() {
        let refused = r#"{"error": {"class": "GenericError", "desc": "no such node"}}"#;
        let mut qmp = Qmp::open(monitor(&[GREETING, DONE, refused])).unwrap();
        let error = qmp.add_snapshot_disk("/x").unwrap_err();
        assert_eq!(error, "blockdev-add: no such node");

        let said = r#"{"return": "Error: Device has no medium\r\n"}"#;
        let mut qmp = Qmp::open(monitor(&[GREETING, DONE, said])).unwrap();
        let error = qmp.human("savevm ready").unwrap_err();
        assert!(error.contains("Device has no medium"), "{error}");

        assert!(
            Qmp::open(monitor(&["hello"]))
                .unwrap_err()
                .contains("hello")
        );
        let (ours, _) = UnixStream::pair().unwrap();
        assert_eq!(Qmp::open(ours).unwrap_err(), "its monitor is gone");
    }
}
