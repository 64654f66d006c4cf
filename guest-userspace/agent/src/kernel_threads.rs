//! The kernel threads, as `/proc` shows them.

use std::fs;
use std::io;

/// `PF_KTHREAD` (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// The ids of all kernel threads.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn list() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        // The task may have ended meanwhile.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if is_kernel_thread(&stat) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The flags are the ninth field. The second field is a name in brackets, with any characters.
fn is_kernel_thread(stat: &str) -> bool {
    let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let flags = behind_name.split_whitespace().nth(6);
    flags.is_some_and(|flags| {
        let flags = flags.parse::<u64>().unwrap_or(0);
        flags & PF_KTHREAD != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell() {
        let kernel = "16 (migration/0) S 2 0 0 0 -1 69238848 0 0";
        assert!(is_kernel_thread(kernel));
        assert!(is_kernel_thread(
            &kernel.replace("migration/0", "a) S 2 (b")
        ));
        assert!(!is_kernel_thread("7 (cat) R 1 7 1 0 -1 4194304 88 0"));
        assert!(!is_kernel_thread(""));
        assert!(!list().unwrap().contains(&std::process::id()));
    }
}
