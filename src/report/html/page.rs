//! The file around a report's JSON: style, script, and a policy that forbids all else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use unwindlab_engine::text::printable;

const STYLE: &str = concat!(
    include_str!("assets/page.css"),
    include_str!("assets/sweep.css"),
    include_str!("assets/mutation.css")
);
const COMMON: &str = include_str!("assets/common.js");

/// The file. `scripts` draw the data, which they find as `data`.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub(super) fn page(
    title: &str,
    scripts: &[&str],
    data: &impl Serialize,
) -> Result<String, serde_json::Error> {
    let script = [&[COMMON], scripts].concat().join("\n");
    let json = embedded(&serde_json::to_string(data)?);
    let title = escaped(title);
    let (style_hash, script_hash) = (hash(STYLE), hash(&script));
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{style_hash}'; \
         script-src '{script_hash}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <noscript>A script in this file draws the report, and scripts are off.</noscript>\n\
         <script type=\"application/json\" id=\"data\">{json}</script>\n<script>{script}</script>\n</body>\n</html>\n"
    ))
}

/// What a policy calls a script or a style by.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// JSON that ends no element and has no character that is not seen: a string with one reads as its escape.
fn embedded(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut chars = json.chars();
    while let Some(c) = chars.next() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            // serde_json writes control characters so, and no others.
            '\\' => match chars.next() {
                Some('u') => out.push_str("\\\\u"),
                escaped => out.extend([c].into_iter().chain(escaped)),
            },
            c if c.is_ascii_graphic() || c == ' ' => out.push(c),
            c => out.push_str(&printable(c.encode_utf8(&mut [0; 4])).replace('\\', "\\\\")),
        }
    }
    out
}

/// Text between tags.
fn escaped(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
