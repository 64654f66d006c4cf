//! `--json`: one JSON object per scenario and line.
//!
//! 64-bit values (cookies, addresses, times) are JSON integers beyond 2^53: read them with a
//! parser that keeps them.

use serde::Serialize;

use crate::judge::result::ScenarioResult;

/// Names the format of a record. The number rises with every change that may break a reader; an
/// added key is no such change.
pub const SCHEMA: &str = "unwindlab.result/1";

/// The kernel and the KVM host, the same for every scenario of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setting {
    /// The kernel as the user named it.
    pub kernel_spec: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// Content hash of the image.
    pub kernel_hash: String,
    /// The KVM host.
    pub kvm_host: String,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Record<'a> {
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
    let mut text = serde_json::to_string(&Record {
        schema: SCHEMA,
        setting,
        result,
    })?;
    text.push('\n');
    Ok(text)
}
