//! `--json`: one JSON object per scenario and line, and the schema of these objects.
//!
//! 64-bit values (cookies, addresses, times) are JSON integers beyond 2^53: read them with a
//! parser that keeps them.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;

use crate::judge::result::ScenarioResult;

/// Names the format of a record. The number rises with every change that may break a reader; an
/// added key is no such change.
pub const SCHEMA: &str = "unwindlab.result/1";

/// The kernel and the KVM host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Setting {
    /// The kernel as the user named it.
    pub kernel_spec: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// Content hash of the image.
    pub kernel_hash: String,
    /// The KVM host; `none` as long as nothing was run on one.
    pub kvm_host: String,
}

/// The record of one scenario.
pub fn record<'a>(setting: &'a Setting, result: &'a ScenarioResult) -> impl Serialize + use<'a> {
    Record {
        schema: SCHEMA,
        setting,
        result,
    }
}

/// The result of one scenario.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(title = "unwindlab.result/1")]
struct Record<'a> {
    /// The format, `unwindlab.result/` and its version.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    #[serde(flatten)]
    setting: &'a Setting,
    #[serde(flatten)]
    result: &'a ScenarioResult,
}

/// The line of one scenario, newline included.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn line(setting: &Setting, result: &ScenarioResult) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string(&record(setting, result))?;
    text.push('\n');
    Ok(text)
}

/// The JSON schema of a record, as the text of the committed file `docs/result.schema.json`. Keys that a later version of this
/// format adds are allowed.
///
/// # Errors
/// [`serde_json::Error`] should the schema not be JSON, which schemars does not make.
pub fn schema() -> Result<String, serde_json::Error> {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings
        .into_generator()
        .into_root_schema_for::<Record<'_>>();
    let mut text = serde_json::to_string_pretty(&schema)?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_schema_is_current() {
        let committed = include_str!("../../docs/result.schema.json");
        assert!(
            super::schema().unwrap() == committed,
            "run `cargo run -- schema result > docs/result.schema.json`"
        );
    }
}
