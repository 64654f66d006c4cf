//! A scenario to begin with.

use super::check::check;
use super::error::ScenarioErrors;
use super::parse::parse;

const TEMPLATE: &str = include_str!("template.yaml");
/// What stands in the place of the name.
const NAME: &str = "NAME";

/// A commented scenario of this name, that passes on a right kernel.
///
/// # Errors
/// [`ScenarioErrors`] for a name that no scenario may have.
pub fn named(name: &str, invariants: &[&str]) -> Result<String, ScenarioErrors> {
    let text = TEMPLATE.replacen(&format!("name: {NAME}\n"), &format!("name: {name}\n"), 1);
    let file = format!("{name}.yaml");
    let written = parse(&file, &text)?;
    check(&file, name, written, invariants)?;
    Ok(text)
}
