//! An initrd of one file: a newc cpio archive (Documentation/driver-api/early-userspace/
//! buffer-format.rst).

/// An archive with `init`, and the console it starts with.
pub fn with_init(init: &[u8]) -> Vec<u8> {
    const DIRECTORY: u32 = 0o40755;
    const PROGRAM: u32 = 0o100_755;
    const CONSOLE: u32 = 0o20600;
    let mut archive = Vec::new();
    add(&mut archive, "dev", DIRECTORY, (0, 0), &[]);
    add(&mut archive, "dev/console", CONSOLE, (5, 1), &[]);
    add(&mut archive, "init", PROGRAM, (0, 0), init);
    add(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    archive
}

fn add(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let inode = u32::try_from(archive.len()).unwrap();
    let size = u32::try_from(data.len()).unwrap();
    let name_size = u32::try_from(name.len() + 1).unwrap();
    let fields = [
        inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0,
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    archive.extend(name.bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(data);
    archive.resize(archive.len().next_multiple_of(4), 0);
}
