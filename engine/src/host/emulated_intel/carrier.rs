//! Carries bytes between the mailbox and the stream that the command talks to, and reads what Bochs writes to its terminal.
//!
//! A thread, which ends when the command closes its end of the stream, or Bochs is gone.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::mailbox::Outside;

/// From one look at the mailbox to the next.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// Bytes that are carried at once.
const AT_ONCE: usize = 256 << 10;

/// Starts the thread.
///
/// # Errors
/// When there can be none.
pub(super) fn carry(mailbox: Outside, stream: UnixStream, terminal: File) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("mailbox".into());
    thread.spawn(move || {
        if let Err(error) = run(mailbox, stream, terminal) {
            tracing::debug!("the mailbox: {error}");
        }
    })?;
    Ok(())
}

fn run(mut mailbox: Outside, mut stream: UnixStream, mut terminal: File) -> io::Result<()> {
    let mut buffer = vec![0; AT_ONCE];
    loop {
        let mut ready = [
            PollFd::new(&stream, PollFlags::IN),
            PollFd::new(&terminal, PollFlags::IN),
        ];
        match poll(&mut ready, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [from_command, from_bochs] = ready.map(|it| !it.revents().is_empty());
        if from_command {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                length => mailbox.tell(buffer.get(..length).unwrap_or_default())?,
            }
        }
        // A terminal whose other end is closed fails rather than ends.
        let gone = from_bochs && !matches!(terminal.read(&mut buffer), Ok(1..));
        loop {
            let news = mailbox.news(AT_ONCE)?;
            if news.is_empty() {
                break;
            }
            stream.write_all(&news)?;
        }
        if gone {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// A carrier with the command's end of its stream, and Bochs' end of the terminal; a socket does for that.
    fn carrier(mailbox: Outside) -> (UnixStream, UnixStream) {
        let (command, stream) = UnixStream::pair().unwrap();
        let (bochs, terminal) = UnixStream::pair().unwrap();
        let terminal = File::from(std::os::fd::OwnedFd::from(terminal));
        carry(mailbox, stream, terminal).unwrap();
        (command, bochs)
    }

    #[test]
    fn what_the_command_says_gets_into_the_mailbox() {
        let mailbox = Outside::new().unwrap();
        let disk = mailbox.file().try_clone().unwrap();
        let (mut command, mut bochs) = carrier(mailbox);
        bochs.write_all(b"a screen").unwrap();
        command.write_all(b"hello").unwrap();
        let mut said = [0; 5];
        while &said != b"hello" {
            disk.read_exact_at(&mut said, 512).unwrap();
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_stream_ends_with_bochs() {
        let (mut command, bochs) = carrier(Outside::new().unwrap());
        drop(bochs);
        assert_eq!(command.read(&mut [0]).unwrap(), 0);
    }
}
