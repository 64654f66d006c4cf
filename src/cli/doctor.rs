//! `unwindlab doctor`: what would be used on this machine; with `--self-test`, whether its KVM does what the VMM relies on.

use std::fs;
use std::time::{Instant, SystemTime};

use clap::Args;

use super::error::CommandError;
use super::output::print;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::self_test::{SelfTestEvent, self_test};
use crate::host::choice::KvmHost;
use crate::judge::outcome::{OutcomeClass, class_code};
use crate::report::self_test::{foot, head, line};
use unwindlab_engine::plan::self_test::Tally;

/// `unwindlab doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Run the VMM's own checks on this machine's /dev/kvm, and print a block to send in.
    #[arg(long)]
    pub self_test: bool,
    /// Run them on another KVM host [default: native].
    #[arg(long, value_enum, value_name = "HOST", requires = "self_test")]
    pub kvm_host: Option<KvmHost>,
}

/// Prints the report, or the self-test's block; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing was checked.
pub fn doctor(
    args: &DoctorArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    if !args.self_test {
        print(&context.provider.doctor()?)?;
        return Ok(0);
    }
    let begin = Instant::now();
    let kvm_host = args.kvm_host.unwrap_or(KvmHost::Native);
    let tally = self_test(kvm_host, context, &mut |event| {
        let told = match event {
            SelfTestEvent::Begin { host, about } => {
                let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
                head(host, about, &load, SystemTime::now())
            }
            SelfTestEvent::Checked(checked) => line(checked),
        };
        Ok::<_, CommandError>(spinner.print(&told)?)
    })?;
    spinner.print(&foot(tally, begin.elapsed()))?;
    Ok(exit_code(tally))
}

/// 0 where every check is ok, and no other.
const fn exit_code(tally: Tally) -> u8 {
    class_code(match tally {
        Tally { failed: 1.., .. } => OutcomeClass::Bad,
        Tally {
            not_available: 1.., ..
        }
        | Tally { ok: 0, .. } => OutcomeClass::Untested,
        _ => OutcomeClass::Good,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_all_is_ok_the_exit_code_is_0() {
        let code = |ok, failed, not_available| {
            exit_code(Tally {
                ok,
                failed,
                not_available,
            })
        };
        assert_eq!(code(5, 0, 0), 0);
        assert_eq!(code(5, 1, 3), 1);
        assert_eq!(code(5, 0, 1), 125);
        assert_eq!(code(0, 0, 0), 125);
    }
}
