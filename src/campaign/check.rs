//! Judges recordings that perf made of any machine: no machine is booted.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use crate::host::provider::TestKernel;
use crate::judge::recorded::{self, Unknown};
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_guest_kernel::input;
use unwindlab_oracle::trace::perf_data::{Limits, PerfData, PerfDataError};

/// Bytes of a file that are read.
const LARGEST: u64 = 2 << 30;

/// What names standard input.
const STDIN: &str = "-";

/// What is to be judged.
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    /// The recordings; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// The kernel that was recorded, if somebody says which.
    pub kernel: Option<KernelChoice>,
    /// Nothing else asked for user stacks meanwhile.
    pub alone: bool,
}

/// Why a file is not judged.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum CheckError {
    /// It cannot be read.
    #[error("{}: {source}", .file.display())]
    Read {
        file: PathBuf,
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{}: more than {LARGEST} bytes, which is all that is read", .0.display())]
    TooLarge(PathBuf),
    /// It is no recording.
    #[error("{}: {source}", .file.display())]
    NoRecording {
        file: PathBuf,
        source: PerfDataError,
    },
}

/// A recording, judged.
#[expect(missing_debug_implementations, reason = "holds a trait object")]
pub struct Checked<'a> {
    /// What was decided.
    pub result: &'a ScenarioResult,
    /// What the file says of itself; `None` where nothing of it can be judged.
    pub data: Option<&'a PerfData>,
    /// The kernel that was recorded, if it is known.
    pub kernel: Option<&'a dyn TestKernel>,
    /// Why the kernel's code was not looked at.
    pub no_kernel: Option<String>,
}

/// Judges each file, and tells of it; the outcomes.
///
/// # Errors
/// [`CampaignError`].
pub fn check(
    request: &CheckRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(Checked<'_>) -> std::io::Result<()>,
) -> Result<Vec<Outcome>, CampaignError> {
    let choice = request.kernel.as_ref();
    let given = choice.map(|it| context.fetch(&it.request()?).map_err(CampaignError::from));
    let given = given.transpose()?;
    let mut outcomes = Vec::new();
    for file in &request.files {
        context.check_interrupt()?;
        let name = file.display().to_string();
        let mut data = match PerfData::read(&read(file)?, Limits::default()) {
            Ok(data) => data,
            Err(error @ (PerfDataError::Unsuitable { .. } | PerfDataError::TooMuch { .. })) => {
                let outcome = match error {
                    PerfDataError::Unsuitable { .. } => Outcome::Skip,
                    _ => Outcome::InfraError,
                };
                outcomes.push(outcome);
                tell(Checked {
                    result: &ScenarioResult::not_run(&name, outcome, error.to_string()),
                    data: None,
                    kernel: None,
                    no_kernel: None,
                })?;
                continue;
            }
            Err(source) => {
                let file = file.clone();
                return Err(CheckError::NoRecording { file, source }.into());
            }
        };
        if let Some(recorded) = &mut data.trace.recorded {
            recorded.alone = request.alone;
        }
        let installed = match given {
            Some(_) => None,
            None => installed(&data, context),
        };
        let kernel = given.as_deref().or(installed.as_deref());
        let no_kernel = unusable(kernel, &mut data);
        let kernel = kernel.filter(|_| no_kernel.is_none());
        let symbols = kernel.map_or(&Unknown as &_, |it| it.symbols());
        let trace = std::mem::take(&mut data.trace);
        let result = recorded::judge(&context.judge(symbols, false), &name, trace);
        outcomes.push(result.outcome);
        tell(Checked {
            result: &result,
            data: Some(&data),
            kernel,
            no_kernel,
        })?;
    }
    Ok(outcomes)
}

/// Reads a file. Only standard input may be something else than a regular file: a pipe is waited for.
fn read(file: &Path) -> Result<Vec<u8>, CheckError> {
    let failed = |source| CheckError::Read {
        file: file.to_owned(),
        source,
    };
    if file.as_os_str() != STDIN {
        return input::read(file, LARGEST).map_err(failed);
    }
    let mut bytes = Vec::new();
    let mut stdin = std::io::stdin().lock().take(LARGEST + 1);
    stdin.read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 > LARGEST {
        true => Err(CheckError::TooLarge(file.to_owned())),
        false => Ok(bytes),
    }
}

/// The kernel of that release that is installed here, if one is.
fn installed(data: &PerfData, context: Context<'_>) -> Option<Box<dyn TestKernel>> {
    let release = &data.trace.release;
    let plain = |it: char| it.is_ascii_alphanumeric() || "+-._~".contains(it);
    if release.is_empty() || !release.chars().all(plain) {
        return None;
    }
    let file = format!("/boot/vmlinuz-{release}");
    if !Path::new(&file).is_file() {
        return None;
    }
    let choice = KernelChoice {
        kernel: Some(format!("path:{file}")),
        ..KernelChoice::default()
    };
    context.fetch(&choice.request().ok()?).ok()
}

/// Why nothing is to be concluded from a kernel's code; otherwise its addresses are those of the recording now.
fn unusable(kernel: Option<&dyn TestKernel>, data: &mut PerfData) -> Option<String> {
    let Some(kernel) = kernel else {
        return Some("no kernel of this release is at hand".to_owned());
    };
    let release = &data.trace.release;
    if kernel.release() != release.as_str() {
        return Some(format!(
            "the kernel is {}, the recording is of {release}",
            kernel.release()
        ));
    }
    let linked = kernel.symbols().addresses("_text").first().copied();
    match linked {
        None => Some("the kernel's symbols lack _text".to_owned()),
        Some(linked) if data.link_kernel(linked) => None,
        Some(_) => Some("the file does not say where the kernel's text was".to_owned()),
    }
}
