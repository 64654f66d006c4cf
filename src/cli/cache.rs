//! `unwindlab cache`.

use super::error::CommandError;
use super::progress::Spinner;
use crate::campaign::Context;

/// Exit code where an entry was damaged.
const DAMAGED: u8 = 1;

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
