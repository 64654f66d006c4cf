//! What a guest boots into: the agent, which is inside this binary, in an initial file system.

pub(crate) mod cpio;

use std::io;

use self::cpio::Archive;

/// The agent: a static ELF at fixed addresses, built by `build.rs`.
static AGENT: &[u8] = include_bytes!(env!("UNWINDLAB_AGENT"));

/// The guest's whole initial file system: the agent as `/init`, its mount points, and the device
/// nodes that it needs before it mounts anything.
///
/// # Errors
/// As [`Archive::file`].
pub(crate) fn guest_initrd() -> io::Result<Vec<u8>> {
    Archive::default()
        .standard_devices()?
        .directory("proc")?
        .directory("tracing")?
        .file("init", AGENT)?
        .finish()
}

#[cfg(test)]
mod tests {
    use object::read::elf::{FileHeader, ProgramHeader};
    use object::{Endianness, elf};

    use super::*;

    /// No interpreter is in the guest, and scenarios rely on fixed addresses.
    #[test]
    fn the_agent_needs_no_loader_and_no_relocation() {
        let header = elf::FileHeader64::<Endianness>::parse(AGENT).unwrap();
        let endian = header.endian().unwrap();
        assert_eq!(header.e_type(endian), elf::ET_EXEC);
        let segments = header.program_headers(endian, AGENT).unwrap();
        assert!(
            segments
                .iter()
                .all(|segment| segment.p_type(endian) != elf::PT_INTERP)
        );
    }

    #[test]
    fn the_initrd_is_the_agent_and_little_else() {
        let initrd = guest_initrd().unwrap();
        assert!(initrd.windows(AGENT.len()).any(|bytes| bytes == AGENT));
        assert!(initrd.len() < AGENT.len() + 4096);
    }
}
