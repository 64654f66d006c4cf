//! `unwindlab man` and `unwindlab completions`: what clap knows of the command line, for man(1) and for shells.

use clap::CommandFactory as _;

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::error::CommandError;
use super::output::print;
use crate::report::output_file::WriteError;

/// Prints the manual page of the program, or writes a page for each command.
///
/// # Errors
/// [`CommandError`] where a page cannot be written.
pub(super) fn man(args: &ManArgs) -> Result<(), CommandError> {
    if let Some(folder) = &args.folder {
        let written = clap_mangen::generate_to(Cli::command(), folder);
        return Ok(written.map_err(|source| WriteError {
            path: folder.clone(),
            source,
        })?);
    }
    let mut page = Vec::new();
    // There is a page for each command, but none for `help`.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(print(&String::from_utf8_lossy(&page))?)
}

/// Prints a shell's completion script.
///
/// # Errors
/// [`CommandError`] where standard output cannot be written.
pub(super) fn completions(args: &CompletionsArgs) -> Result<(), CommandError> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    Ok(print(&String::from_utf8_lossy(&script))?)
}
