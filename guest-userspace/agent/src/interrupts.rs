//! The kernel's own counts of interrupts.

use std::io;

use unwindlab_abi::InterruptCounts;

const FILE: &str = "/proc/interrupts";

/// Reads the counts.
///
/// # Errors
/// If the file cannot be read or lacks a row.
pub fn count() -> io::Result<InterruptCounts> {
    let text = std::fs::read_to_string(FILE)?;
    let row = |name| {
        row(&text, name).ok_or_else(|| io::Error::other(format!("{FILE} has no row {name}")))
    };
    Ok(InterruptCounts {
        nmi: row("NMI")?,
        pmi: row("PMI")?,
    })
}

/// The sum of a row, which has its name and a colon, one number for each CPU, and a description.
fn row(text: &str, name: &str) -> Option<u64> {
    let numbers = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let counts = numbers.split_whitespace().map_while(|it| it.parse().ok());
    Some(counts.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_summed_over_the_cpus() {
        let text = "           CPU0       CPU1\n   4:         17          0   IO-APIC   4-edge  \
                    ttyS0\n NMI:          5          7   Non-maskable interrupts\n PMI:          \
                    0          3   Performance monitoring interrupts\n ERR:          0\n";
        assert_eq!(row(text, "NMI"), Some(12));
        assert_eq!(row(text, "PMI"), Some(3));
        assert_eq!(row(text, "ERR"), Some(0));
        assert_eq!(row(text, "MI"), None);
        assert_eq!(row("", "NMI"), None);
    }
}
