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

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [&str; 4] = ["C2", "M1", "M3", "S1"];

    #[test]
    fn it_is_a_scenario_of_its_name() {
        let text = named("my-own", &IDS).unwrap();
        assert!(text.contains("\nname: my-own\n") && !text.contains(NAME));
    }

    #[test]
    fn a_name_that_no_scenario_may_have_is_refused() {
        for name in ["", "My Own", "../x", "a: b", "x\ny"] {
            assert!(named(name, &IDS).is_err(), "{name:?}");
        }
    }
}
