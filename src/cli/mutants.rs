//! `unwindlab mutants`.

use std::time::Instant;

use super::args::MutantsArgs;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::mutants::{self, MutantTest, MutantsRequest};

/// Builds and tests the mutants, and prints the kill matrix; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn mutants(
    args: &MutantsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let test = if args.sweep {
        MutantTest::Sweep
    } else if args.all || !args.scenarios.is_empty() {
        MutantTest::Scenarios(args.scenarios.clone())
    } else {
        MutantTest::OwnScenarios
    };
    let request = MutantsRequest {
        only: args.only.clone(),
        test,
        base: args.build.choice(),
        kvm_host: args.kvm_host,
    };
    let matrix = mutants::mutants(&request, context, &mut |row| {
        spinner.print(&format!("{}\n", row.line()))
    })?;
    spinner.clear();
    spinner.print(&format!(
        "\n{}\n{} in {:.0} s\n",
        matrix.table(),
        matrix.summary(),
        start.elapsed().as_secs_f64()
    ))?;
    Ok(class_code(matrix.class()))
}
