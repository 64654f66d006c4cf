//! `unwindlab variants`.

use std::time::Instant;

use super::args::VariantsArgs;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::variants::{self, VariantsRequest};

/// Builds and runs the variants and prints the comparison; the exit code: 0 where all could be
/// measured, whatever they do wrong.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn variants(
    args: &VariantsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let request = VariantsRequest {
        scenarios: args.scenarios.clone(),
        only: args.only.clone(),
        base: args.build.choice(),
        kvm_host: args.kvm_host,
    };
    let table = variants::variants(&request, context, &mut |column| {
        spinner.print(&match &column.error {
            Some(error) => format!("{}: not measured: {error}\n", column.name),
            None => format!("{}: measured\n", column.name),
        })
    })?;
    spinner.clear();
    spinner.print(&format!(
        "\n{}\n{:.0} s\n",
        table.table(),
        start.elapsed().as_secs_f64()
    ))?;
    Ok(class_code(table.class()))
}
