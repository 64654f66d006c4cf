//! `unwindlab cache`.

use std::time::Duration;

use super::args::PruneArgs;
use super::error::CommandError;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::host::provider::ProviderError;

/// Exit code where an entry was damaged.
const DAMAGED: u8 = 1;
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;
/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// `unwindlab cache list`.
pub fn list(context: Context<'_>, spinner: &Spinner) -> Result<(), CommandError> {
    let entries = context.provider.cache_entries()?;
    for (name, bytes) in &entries {
        spinner.print(&format!("{:>6} MiB  {name}\n", bytes.div_ceil(MIB)))?;
    }
    let total: u64 = entries.iter().map(|(_, bytes)| bytes).sum();
    spinner.print(&format!(
        "{:>6} MiB  in {} entries and build folders\n",
        total.div_ceil(MIB),
        entries.len()
    ))?;
    Ok(())
}

/// `unwindlab cache prune`.
pub fn prune(args: PruneArgs, context: Context<'_>, spinner: &Spinner) -> Result<(), CommandError> {
    if args.builds {
        return prune_builds(context, spinner);
    }
    let machines = context.provider.saved_machines()?;
    let days = |days| Duration::from_secs(u64::from(days) * DAY);
    let at_most = match (args.unused_for, args.at_most) {
        (_, Some(mib)) => u64::from(mib) * MIB,
        (Some(_), None) => u64::MAX,
        (None, None) => 0,
    };
    let pruned = machines
        .prune(at_most, args.unused_for.map(days))
        .map_err(|error| ProviderError::Unavailable(error.to_string()))?;
    spinner.print(&format!(
        "{} saved machines removed, {} MiB; {} left, {} MiB\n",
        pruned.removed,
        pruned.freed.div_ceil(MIB),
        pruned.left,
        pruned.taken.div_ceil(MIB),
    ))?;
    Ok(())
}

fn prune_builds(context: Context<'_>, spinner: &Spinner) -> Result<(), CommandError> {
    let pruned = context.provider.prune_builds()?;
    let in_use = match pruned.in_use.as_slice() {
        [] => String::new(),
        names => format!("; in use: {}", names.join(", ")),
    };
    spinner.print(&format!(
        "{} build folders removed, {} MiB{in_use}\n",
        pruned.removed,
        pruned.freed.div_ceil(MIB)
    ))?;
    Ok(())
}

/// `unwindlab cache verify`.
pub fn verify(context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    let verified = context.provider.verify_cache(spinner)?;
    for damaged in &verified.damaged {
        spinner.print(&format!("damaged  {damaged}\n"))?;
    }
    let (whole, damaged) = (verified.whole, verified.damaged.len());
    spinner.print(&format!(
        "{whole} whole, {damaged} damaged{}\n",
        match damaged {
            0 => "",
            _ => ": set aside, and made again when they are needed",
        }
    ))?;
    Ok(match damaged {
        0 => 0,
        _ => DAMAGED,
    })
}
