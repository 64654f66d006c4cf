//! Which findings a kernel has, by its code alone: nothing is run.

use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use crate::host::provider::TestKernel;
use crate::judge::FindingInImage;
use unwindlab_oracle::invariant::finding::{FoundWindow, Presence};

/// Each finding that is known, and where its window is in the kernel's code.
///
/// # Errors
/// [`CampaignError`].
pub fn findings(choice: &KernelChoice, context: Context<'_>) -> Result<Vec<String>, CampaignError> {
    let kernel = context.fetch(&choice.request()?)?;
    let found = context.analysis.findings.in_image(kernel.symbols());
    Ok(found.iter().map(|it| line(it, kernel.as_ref())).collect())
}

fn line(found: &FindingInImage, kernel: &dyn TestKernel) -> String {
    let FindingInImage {
        id,
        title,
        presence,
    } = found;
    let says = match presence {
        Presence::Absent => "not in this kernel's code".to_owned(),
        Presence::Code => "in this kernel's code".to_owned(),
        Presence::Windows(windows) => {
            let at = |ip: &u64| match kernel.symbols().resolve(*ip) {
                Some((_, offset)) => format!("+{offset:#x}"),
                None => format!("{ip:#x}"),
            };
            let place = |it: &FoundWindow| {
                let name = &it.function;
                let ips: Vec<String> = it.instructions.iter().map(at).collect();
                match ips.as_slice() {
                    [first, .., last] if ips.len() > 3 => format!("{name}{first} to {last}"),
                    _ => format!("{name}{}", ips.join(" ")),
                }
            };
            let places: Vec<String> = windows.iter().map(place).collect();
            format!("in this kernel's code, at {}", places.join(", "))
        }
    };
    format!("{id}  {says}\n      {title}\n")
}
