//! Standard output: styled where it is a terminal, plain elsewhere.

use std::io::{self, Write as _};

/// Prints. A reader that has gone away (`| head`) is no error: the rest of the work, such as
/// writing the result files, is still wanted.
///
/// # Errors
/// What writing says, except for a broken pipe.
pub fn print(text: &str) -> io::Result<()> {
    if cfg!(test) {
        // The macro is what the test harness captures.
        print!("{}", anstream::adapter::strip_str(text));
        return Ok(());
    }
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
