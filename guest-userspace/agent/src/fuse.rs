//! A file whose bytes this program serves itself, so that the kernel must ask for a page that is
//! not in memory: a FUSE file system with one regular file, which needs no disk.
//!
//! Layouts and numbers: include/uapi/linux/fuse.h of Linux 7.3.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use unwindlab_abi::mailbox::PAGE_SIZE;

/// Bytes of `fuse_in_header` and of `fuse_out_header`.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Bytes of `fuse_read_in` and `fuse_write_in`; the data follow.
const IO_IN: usize = 40;
/// Largest write in one request.
const MAX_WRITE: u32 = 64 * 1024;
/// Version of the protocol, and bytes of its `fuse_init_out`.
const VERSION: (u32, u32) = (7, 31);
const INIT_OUT: usize = 64;
/// Reported block size in bytes.
const BLOCK: u32 = 4096;
/// Seconds for which attributes are valid.
const FOR_EVER: u64 = 1 << 30;
/// Mode of the file: regular, access for the owner.
const MODE: u32 = 0o100_600;

/// `enum fuse_opcode`.
mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// The file, mounted and open; unmounted when dropped.
#[derive(Debug)]
pub struct ServedFile {
    path: String,
    file: Option<File>,
    reads: Arc<AtomicU64>,
    server: Option<JoinHandle<()>>,
}

impl ServedFile {
    /// Makes a file of this many zero bytes at an unused path.
    ///
    /// # Errors
    /// `NotFound` if the kernel has no FUSE, otherwise the error.
    pub fn new(path: &str, bytes: usize) -> io::Result<Self> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")?;
        fs::write(path, [])?;
        let options = format!(
            "fd={},rootmode={MODE:o},user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("unwindlab", path, "fuse", flags, Some(options.as_c_str()))?;
        let reads = Arc::new(AtomicU64::new(0));
        let mut server = Server {
            device,
            bytes: vec![0; bytes],
            reads: Arc::clone(&reads),
        };
        let server = Builder::new()
            .name("file-server".to_owned())
            .spawn(move || server.serve())?;
        let mut this = Self {
            path: path.to_owned(),
            file: None,
            reads,
            server: Some(server),
        };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // This makes the kernel ask for the size.
        if file.metadata()?.len() != bytes as u64 {
            return Err(io::Error::other("the served file has another size"));
        }
        this.file = Some(file);
        Ok(this)
    }

    /// The open file.
    #[must_use]
    pub const fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// How often the kernel has asked for bytes of the file.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Acquire)
    }
}

impl Drop for ServedFile {
    fn drop(&mut self) {
        self.file = None;
        // The connection ends with the last user of the mount, and the server with the connection.
        let _ = unmount(self.path.as_str(), UnmountFlags::DETACH);
        let _ = self.server.take().map(JoinHandle::join);
        let _ = fs::remove_file(&self.path);
    }
}

/// The server of the file.
struct Server {
    device: File,
    bytes: Vec<u8>,
    reads: Arc<AtomicU64>,
}

impl Server {
    /// Answers until the file is unmounted.
    fn serve(&mut self) {
        let mut request = vec![0; PAGE_SIZE + MAX_WRITE as usize];
        loop {
            let read = match self.device.read(&mut request) {
                Ok(read) => read,
                // A request was withdrawn before it was read.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let request = request.get(..read).unwrap_or_default();
            let (Some(opcode), Some(unique)) = (u32_at(request, 4), u64_at(request, 8)) else {
                return;
            };
            let body = request.get(IN_HEADER..).unwrap_or_default();
            if matches!(
                opcode,
                opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT
            ) {
                continue;
            }
            let (error, data) = match self.answer(opcode, body) {
                Ok(data) => (0, data),
                Err(errno) => (-errno, Vec::new()),
            };
            let mut reply = Vec::with_capacity(OUT_HEADER + data.len());
            let len = u32::try_from(OUT_HEADER + data.len()).unwrap_or(u32::MAX);
            reply.extend(len.to_le_bytes());
            reply.extend(error.to_le_bytes());
            reply.extend(unique.to_le_bytes());
            reply.extend(data);
            // The requester may be gone.
            let _ = self.device.write(&reply);
        }
    }

    fn answer(&mut self, opcode: u32, body: &[u8]) -> Result<Vec<u8>, i32> {
        match opcode {
            opcode::INIT => Ok(init()),
            opcode::GETATTR | opcode::SETATTR => Ok(self.attributes()),
            // `fuse_open_out`: no handle, no flags.
            opcode::OPEN => Ok(vec![0; 16]),
            opcode::READ => {
                self.reads.fetch_add(1, Ordering::AcqRel);
                let (start, end) = self.range(body)?;
                self.bytes
                    .get(start..end)
                    .map(<[u8]>::to_vec)
                    .ok_or(libc::EIO)
            }
            opcode::WRITE => {
                let (start, end) = self.range(body)?;
                let data = body.get(IO_IN..IO_IN + (end - start)).ok_or(libc::EIO)?;
                let into = self.bytes.get_mut(start..end).ok_or(libc::EIO)?;
                into.copy_from_slice(data);
                let written = u64::try_from(data.len()).unwrap_or(0);
                Ok(written.to_le_bytes().to_vec())
            }
            opcode::FLUSH | opcode::RELEASE | opcode::FSYNC => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        }
    }

    /// The range of a read or a write, cut at the end of the file.
    fn range(&self, body: &[u8]) -> Result<(usize, usize), i32> {
        let (offset, size) = (u64_at(body, 8), u32_at(body, 16));
        let (offset, size) = offset.zip(size).ok_or(libc::EIO)?;
        let start = usize::try_from(offset).map_err(|_| libc::EIO)?;
        let start = start.min(self.bytes.len());
        let end = start.saturating_add(size as usize).min(self.bytes.len());
        Ok((start, end))
    }

    /// `fuse_attr_out`.
    fn attributes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(FOR_EVER.to_le_bytes());
        out.extend([0; 8]);
        // Inode, size, blocks, three times.
        for word in [1, self.bytes.len() as u64, 0, 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
        // Three times, mode, links, owner, group, device, block size, flags.
        for word in [0, 0, 0, MODE, 1, 0, 0, 0, BLOCK, 0] {
            out.extend(word.to_le_bytes());
        }
        out
    }
}

/// `fuse_init_out`, without read-ahead: the kernel asks for a page when it is accessed.
fn init() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [VERSION.0, VERSION.1, 0, 0, 0, MAX_WRITE, 1] {
        out.extend(word.to_le_bytes());
    }
    out.resize(INIT_OUT, 0);
    out
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            device: File::open("/dev/null").unwrap(),
            bytes: vec![0; 8192],
            reads: Arc::new(AtomicU64::new(0)),
        }
    }

    fn range(offset: u64, size: u32) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend(offset.to_le_bytes());
        body.extend(size.to_le_bytes());
        body.resize(IO_IN, 0);
        body
    }

    #[test]
    fn written_bytes_are_read_again() {
        let mut server = server();
        let mut write = range(4096, 3);
        write.extend(b"abc");
        let written = server.answer(opcode::WRITE, &write).unwrap();
        assert_eq!(written, 3_u64.to_le_bytes());
        let read = server.answer(opcode::READ, &range(4094, 6)).unwrap();
        assert_eq!(read, b"\0\0abc\0");
        assert_eq!(server.reads.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn nothing_is_beyond_the_end() {
        let mut server = server();
        let read = server.answer(opcode::READ, &range(8190, 4096)).unwrap();
        assert_eq!(read, [0, 0]);
        assert_eq!(server.answer(opcode::READ, &[]), Err(libc::EIO));
        let short = range(0, 4096);
        assert_eq!(server.answer(opcode::WRITE, &short), Err(libc::EIO));
        assert_eq!(server.answer(1, &[]), Err(libc::ENOSYS));
    }

    /// The sizes are those of the kernel's structures.
    #[test]
    fn answers_have_their_sizes() {
        assert_eq!(init().len(), 64);
        assert_eq!(server().attributes().len(), 104);
    }
}
