//! `unwindlab costs`.

use clap::Args;

use super::args::KernelOptions;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::costs::{self, CostsRequest};
use crate::campaign::designs::{self, DesignsRequest};
use crate::host::choice::KvmHost;
use crate::report::costs::{class, table};
use crate::report::designs as tables;

/// `unwindlab costs`.
#[derive(Debug, Args)]
pub struct CostsArgs {
    /// Measure a stack of this many frames; repeatable.
    #[arg(
        long,
        value_name = "N",
        default_values_t = [10, 100, 300],
        // What a scenario takes.
        value_parser = clap::value_parser!(u32).range(3..=131_072)
    )]
    pub frames: Vec<u32>,
    /// Compare unwinding in user mode with the kernel's.
    #[arg(long)]
    pub user_mode: bool,
    /// The kernel to measure.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// Measures and prints the table; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn costs(
    args: &CostsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    if args.user_mode {
        return compare(args, context, spinner);
    }
    let request = CostsRequest {
        frames: args.frames.clone(),
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
    };
    let measured = costs::costs(&request, context, &mut |row| {
        context
            .progress
            .step(&format!("{} frames, {}", row.frames, row.way));
        Ok(())
    })?;
    spinner.clear();
    spinner.print(&table(&measured.rows))?;
    spinner.print(&format!(
        "on {}, KVM host {}\n",
        measured.release, measured.kvm_host
    ))?;
    Ok(class_code(class(&measured.rows)))
}

fn compare(args: &CostsArgs, context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    let request = DesignsRequest {
        frames: args.frames.clone(),
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
    };
    let found = designs::designs(&request, context)?;
    spinner.clear();
    spinner.print(&tables::tables(&found))?;
    spinner.print(&format!(
        "on {}, KVM host {}\n",
        found.release, found.kvm_host
    ))?;
    Ok(class_code(tables::class(&found)))
}
