//! The outer machine's console, whose end is shown when the machine dies.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes kept, from the end: that is where the reason is.
const LIMIT: usize = 256 << 10;

/// Collects what the outer machine prints, on a thread that ends when the machine does.
#[derive(Debug)]
pub struct OuterConsole {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl OuterConsole {
    /// Reads `stream` until it closes.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn collect(mut stream: UnixStream) -> std::io::Result<Self> {
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let reader = std::thread::Builder::new()
            .name("outer-console".into())
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
