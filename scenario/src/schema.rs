//! The JSON schema of scenario files, for editors; committed as `scenarios/schema.json`.

use super::model::Scenario;

/// The schema, as the text of the committed file.
///
/// # Errors
/// [`serde_json::Error`] should the schema not be JSON, which schemars does not make.
pub fn schema() -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(Scenario))?;
    text.push('\n');
    Ok(text)
}
