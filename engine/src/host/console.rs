//! What a KVM host prints: the outer machine's console, or the errors of a process here. Its end is shown when the host dies.

use std::io::Read;
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
    pub fn collect(mut stream: impl Read + Send + 'static) -> std::io::Result<Self> {
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

/// How the first line of a kernel's last words begins, or one of QEMU, of Bochs or of our init.
const CAUSES: [&str; 10] = [
    "int3: ",
    "BUG: ",
    "Oops",
    "kernel BUG at ",
    "general protection fault",
    "traps: PANIC",
    "Kernel panic - not syncing",
    "unwindlab: ",
    "qemu-system-x86_64: ",
    ">>PANIC<<",
];
/// QEMU's word for what it does anyway.
const WARNING: &str = "warning:";
/// Most bytes of a line.
const LINE_LIMIT: usize = 200;

/// Lines behind the first in which an oops says where it happened.
const OOPS_LINES: usize = 80;
/// Callers that are shown.
const CALLERS: usize = 6;

/// The first line that says why the machine died, without the time before it; of a kernel's oops also where it
/// happened and who called.
#[must_use]
pub fn cause(console: &str) -> Option<String> {
    let mut lines = console.lines();
    let cause = lines.find_map(|line| {
        let begin = CAUSES.iter().filter_map(|it| line.find(it)).min()?;
        line.get(begin..).filter(|it| !it.contains(WARNING))
    })?;
    let mut told = short(cause).to_owned();
    let oops: Vec<&str> = lines.take(OOPS_LINES).map(without_time).collect();
    if let Some(place) = oops.iter().find(|it| it.starts_with("RIP: ")) {
        told = format!("{told}, {}", short(place));
    }
    let trace = oops.iter().skip_while(|it| !it.starts_with("Call Trace:"));
    let callers = trace.skip(1).take_while(|it| is_caller(it));
    let callers = callers.filter(|it| it.contains("+0x") && !it.starts_with('?'));
    let callers: Vec<&str> = callers.take(CALLERS).map(|it| short(it)).collect();
    if !callers.is_empty() {
        told = format!("{told}, called by {}", callers.join(", "));
    }
    Some(told)
}

fn short(line: &str) -> &str {
    let end = line.floor_char_boundary(LINE_LIMIT);
    line.get(..end).unwrap_or_default().trim()
}

/// A line of the kernel's log behind the time that it begins with.
fn without_time(line: &str) -> &str {
    let text = line.split_once("] ").map_or(line, |(_, text)| text);
    text.trim()
}

/// Whether a line belongs to the list of an oops: a function, or the name of a stack.
fn is_caller(line: &str) -> bool {
    line.starts_with('<') || line.contains("+0x") && !line.contains(':')
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
        assert_eq!(
            cause(oops).as_deref(),
            Some("int3: 0000 [#1] SMP, RIP: 0010:sched_clock_cpu+0x9/0xd0")
        );
        assert_eq!(cause("[ 1.0] smp: Brought up\n"), None);
        assert_eq!(
            cause("qemu-system-x86_64: cannot set up guest memory\n").as_deref(),
            Some("qemu-system-x86_64: cannot set up guest memory")
        );
        let long = format!("BUG: {}", "\u{e4}".repeat(300));
        assert!(cause(&long).is_some_and(|it| it.len() <= 200));
    }

    #[test]
    fn the_callers_of_what_is_no_function_are_told() {
        let oops = "[    2.0] BUG: kernel NULL pointer dereference, address: 0000000000000000\n\
            [    2.0] #PF: supervisor instruction fetch in kernel mode\n\
            [    2.0] Oops: Oops: 0010 [#1] PREEMPT SMP NOPTI\n\
            [    2.0] RIP: 0010:0x0\n\
            [    2.0] Code: Unable to access opcode bytes at 0xffffffffffffffd6.\n\
            [    2.0] Call Trace:\n\
            [    2.0]  <IRQ>\n\
            [    2.0]  ? __die_body.cold+0x19/0x27\n\
            [    2.0]  __run_timers+0x1/0x2\n\
            [    2.0]  </IRQ>\n\
            [    2.0]  <TASK>\n\
            [    2.0]  svm_vcpu_run+0x3/0x4 [kvm_amd]\n\
            [    2.0]  </TASK>\n\
            [    2.0] Modules linked in:\n\
            [    2.0] RIP: 0033:other+0x1/0x2\n";
        assert_eq!(
            cause(oops).as_deref(),
            Some(
                "BUG: kernel NULL pointer dereference, address: 0000000000000000, RIP: 0010:0x0, called by \
                 __run_timers+0x1/0x2, svm_vcpu_run+0x3/0x4 [kvm_amd]"
            )
        );
        assert_eq!(cause("BUG: x\nCall Trace:\n").as_deref(), Some("BUG: x"));
    }
}
