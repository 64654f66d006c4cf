//! The members of an `ar` archive as deb(5) has it: names of up to 16 bytes, and no tables.

use std::io::{self, Read};

const MAGIC: &[u8; 8] = b"!<arch>\n";
/// Bytes of a header: name, times and owners, then ten of length, then the end.
const HEADER: usize = 60;

/// Reads an archive from its front.
pub(super) struct Members<R> {
    from: R,
    /// Bytes before the next header.
    rest: u64,
}

impl<R: Read> Members<R> {
    /// # Errors
    /// If it is no archive.
    pub(super) fn of(mut from: R) -> io::Result<Self> {
        let mut magic = [0; MAGIC.len()];
        from.read_exact(&mut magic)?;
        match magic == *MAGIC {
            true => Ok(Self { from, rest: 0 }),
            false => Err(io::Error::other("it is no ar archive")),
        }
    }

    /// Name and content of the next member; `None` behind the last.
    ///
    /// # Errors
    /// If there is no header where one is due.
    pub(super) fn next(&mut self) -> io::Result<Option<(Vec<u8>, impl Read)>> {
        let rest = std::mem::take(&mut self.rest);
        io::copy(&mut self.from.by_ref().take(rest), &mut io::sink())?;
        let mut header = Vec::new();
        let from = self.from.by_ref();
        from.take(HEADER as u64).read_to_end(&mut header)?;
        if header.is_empty() {
            return Ok(None);
        }
        let length = header.strip_suffix(b"`\n").and_then(length);
        let length = length.ok_or_else(|| io::Error::other("a member has no right header"))?;
        let name = header.get(..16).unwrap_or_default().trim_ascii_end();
        let name = name.strip_suffix(b"/").unwrap_or(name).to_vec();
        // What is read of the member is counted there: what is left of it is passed over.
        self.rest = length.next_multiple_of(2);
        let member = Member {
            from: self.from.by_ref().take(length),
            rest: &mut self.rest,
        };
        Ok(Some((name, member)))
    }
}

/// The length in a header without its end.
fn length(header: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(header.get(48..58)?).ok()?;
    (header.len() == HEADER - 2).then_some(())?;
    digits.trim_end().parse().ok()
}

/// A member.
struct Member<'a, R> {
    from: io::Take<&'a mut R>,
    rest: &'a mut u64,
}

impl<R: Read> Read for Member<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        *self.rest = self.rest.saturating_sub(count as u64);
        Ok(count)
    }
}
