//! What a KVM host prints: the outer machine's console, or the errors of a process here. Its end is shown when the host dies.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes kept, from the end: that is where the reason is.
const LIMIT: usize = 256 << 10;

/// Collects what the host prints, on a thread that ends when the host does.
#[derive(Debug)]
pub struct HostConsole {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl HostConsole {
    /// Reads `stream` until it closes.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn collect(mut stream: UnixStream) -> std::io::Result<Self> {
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let reader = std::thread::Builder::new()
            .name("host-console".into())
            .spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut chunk) {
                    let mut text = sink.lock().unwrap_or_else(PoisonError::into_inner);
                    text.extend_from_slice(chunk.get(..n).unwrap_or_default());
                    let excess = text.len().saturating_sub(LIMIT);
                    text.drain(..excess);
                }
            })?;
        Ok(Self {
            text,
            reader: Some(reader),
        })
    }

    /// Everything kept so far.
    #[must_use]
    pub fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).replace('\r', "")
    }

    /// Waits for the stream's end; call when the machine is gone.
    pub fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has nothing more to tell.
            let _ = reader.join();
        }
    }
}

/// How the first line of a kernel's last words begins, or one of QEMU or of our init.
const CAUSES: [&str; 9] = [
    "int3: ",
    "BUG: ",
    "Oops",
    "kernel BUG at ",
    "general protection fault",
    "traps: PANIC",
    "Kernel panic - not syncing",
    "unwindlab: ",
    "qemu-system-x86_64: ",
];
/// QEMU's word for what it does anyway.
const WARNING: &str = "warning:";
/// Most bytes of a line.
const LINE_LIMIT: usize = 200;

/// The first line that says why the machine died, without the time before it.
#[must_use]
pub fn cause(console: &str) -> Option<&str> {
    let cause = console.lines().find_map(|line| {
        let begin = CAUSES.iter().filter_map(|it| line.find(it)).min()?;
        line.get(begin..).filter(|it| !it.contains(WARNING))
    })?;
    let end = cause.floor_char_boundary(LINE_LIMIT);
    Some(cause.get(..end)?.trim_end())
}

#[cfg(test)]
mod tests {
    use super::cause;

    #[test]
    fn the_first_line_of_the_last_words_is_the_cause() {
        let oops = "[    1.0] smp: Brought up 1 node, 3 CPUs\n\
            qemu-system-x86_64: warning: TCG doesn't support requested feature\n\
            [    1.234567] int3: 0000 [#1] SMP\n[    1.3] RIP: 0010:sched_clock_cpu+0x9/0xd0\n\
            [    1.4] Kernel panic - not syncing: Fatal exception\n";
        assert_eq!(cause(oops), Some("int3: 0000 [#1] SMP"));
        assert_eq!(cause("[ 1.0] smp: Brought up\n"), None);
        assert_eq!(
            cause("qemu-system-x86_64: cannot set up guest memory\n"),
            Some("qemu-system-x86_64: cannot set up guest memory")
        );
        let long = format!("BUG: {}", "\u{e4}".repeat(300));
        assert!(cause(&long).is_some_and(|it| it.len() <= 200));
    }
}
