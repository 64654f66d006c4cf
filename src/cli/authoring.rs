//! `unwindlab new`, `lint` and `explain`: what someone needs who writes a scenario or reads a result.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use super::args::{ExplainArgs, LintArgs, NewArgs};
use super::error::CommandError;
use super::output::print;
use crate::campaign::analysis::Analysis;
use crate::report::explain;
use unwindlab_scenario::library::LibraryError;
use unwindlab_scenario::{Library, template};

/// `unwindlab new`: writes a scenario that can be run as it is.
pub(super) fn new(args: &NewArgs, analysis: &Analysis) -> Result<(), CommandError> {
    if args.name.trim().is_empty() {
        let reason = "a scenario needs a name, such as `unwindlab new my-scenario`";
        return Err(CommandError::Usage(reason.to_owned()));
    }
    let text = template::named(&args.name, &analysis.invariant_ids());
    let text = text.map_err(LibraryError::from)?;
    let file = format!("{}.yaml", args.name);
    let usage = |error: std::io::Error| CommandError::Usage(format!("{file}: {error}"));
    let mut created = File::create_new(Path::new(&file)).map_err(usage)?;
    created.write_all(text.as_bytes()).map_err(usage)?;
    Ok(print(&format!(
        "{file}: run it with `unwindlab run {file}`\n"
    ))?)
}

/// `unwindlab lint`: the errors of scenario files, without a kernel.
pub(super) fn lint(args: &LintArgs, analysis: &Analysis) -> Result<(), CommandError> {
    let library = Library::open(&args.scenarios, &analysis.invariant_ids())?;
    let files = library.scenarios.len();
    let kernel = "a kernel's symbols were not asked for";
    Ok(print(&format!(
        "scenarios without an error: {files}; {kernel}\n"
    ))?)
}

/// `unwindlab explain`.
pub(super) fn explain_name(args: &ExplainArgs) -> Result<(), CommandError> {
    let Some(name) = &args.name else {
        return Ok(print(&explain::contents())?);
    };
    match explain::explain(name) {
        Ok(page) => Ok(print(&page)?),
        Err(alike) => {
            let alike = match alike.as_slice() {
                [] => String::new(),
                names => format!(" (like {})", names.join(", ")),
            };
            Err(CommandError::Usage(format!(
                "no invariant, finding or outcome is called `{name}`{alike}; `unwindlab explain` lists them"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::analysis;

    #[test]
    fn a_scenario_without_a_name_is_refused_plainly() {
        let name = String::new();
        let error = new(&NewArgs { name }, &analysis()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let told = error.to_string();
        assert!(told.starts_with("a scenario needs a name"), "{told}");
    }
}
