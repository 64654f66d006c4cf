//! The guest's agent, inside this binary.

use std::io;

use super::cpio::Archive;

/// The agent: a static ELF at fixed addresses, built by `build.rs`.
pub static AGENT: &[u8] = include_bytes!(env!("UNWINDLAB_AGENT"));

/// The guest's whole initial file system: the agent as `/init`, its mount points, and the nodes
/// it needs before it has mounted anything.
///
/// # Errors
/// As [`Archive::file`].
pub fn guest_initrd() -> io::Result<Vec<u8>> {
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
