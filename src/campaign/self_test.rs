//! The self-test of a KVM: the VMM's own checks, made where guests would run.

use unwindlab_engine::plan::self_test::{AboutKvm, CheckVerdict, Checked, SelfTestMessage, Tally};
use unwindlab_engine::plan::{Executor, InfraError};
use unwindlab_vmm::checks;

use super::Context;
use super::error::CampaignError;
use crate::host::choice::KvmHost;
use crate::host::provider::{HostRequest, ProviderError};

/// What there is to tell while it runs.
#[derive(Debug)]
pub enum SelfTestEvent<'a> {
    /// Where it runs.
    Begin {
        /// The KVM host, and why it is this one.
        host: &'a str,
        /// Its CPU, kernel and modules.
        about: &'a AboutKvm,
    },
    /// A check is over.
    Checked(&'a Checked),
}

/// Makes all checks. Each of them is told of once, also where the KVM host is lost on the way.
///
/// # Errors
/// [`CampaignError`] where no KVM host came up, the user interrupts, or `tell` fails.
pub fn self_test<E>(
    kvm_host: KvmHost,
    context: Context<'_>,
    tell: &mut dyn FnMut(SelfTestEvent<'_>) -> Result<(), E>,
) -> Result<Tally, E>
where
    E: From<CampaignError>,
{
    let request = HostRequest {
        kvm_host,
        fresh: context.fresh,
        ..HostRequest::default()
    };
    let host = { context.provider }.host_to_check(request, context.progress, context.interrupt);
    let mut host = host.map_err(|error: ProviderError| E::from(error.into()))?;
    let name = host.host();
    let names: Vec<&str> = checks::all().map(|it| it.name).collect();
    let mut test = Test::of(&names);
    // The VMM's process may not read what describes the modules, but this one may.
    let is_here = matches!(kvm_host, KvmHost::Auto | KvmHost::Native);
    let mut told = Ok(());
    let lost = make(host.as_mut(), &mut |message| {
        told = match message {
            SelfTestMessage::About(about) => {
                let about = if is_here { AboutKvm::here() } else { about };
                tell(SelfTestEvent::Begin {
                    host: &name,
                    about: &about,
                })
            }
            SelfTestMessage::Begun(name) => {
                context.progress.step(&name);
                test.begun = Some(name);
                Ok(())
            }
            SelfTestMessage::Checked(checked) => {
                test.checked(&checked);
                tell(SelfTestEvent::Checked(&checked))
            }
            SelfTestMessage::Done | SelfTestMessage::Failed(_) => Ok(()),
        };
        told.is_ok() && !context.interrupt.is_set()
    });
    told?;
    if context.interrupt.is_set() {
        return Err(CampaignError::Interrupted.into());
    }
    for checked in test.rest(lost) {
        test.tally.add(&checked.verdict);
        tell(SelfTestEvent::Checked(&checked))?;
    }
    Ok(test.tally)
}

/// Has the host make them; why it did not come to the end.
fn make(
    host: &mut dyn Executor,
    take: &mut dyn FnMut(SelfTestMessage) -> bool,
) -> Result<(), String> {
    let mut refused = None;
    let done = host.self_test(&mut |message| {
        if let SelfTestMessage::Failed(reason) = &message {
            refused = Some(reason.clone());
        }
        take(message)
    });
    match (done, refused) {
        (Err(InfraError { reason, .. }), _) | (Ok(()), Some(reason)) => Err(reason),
        (Ok(()), None) => Ok(()),
    }
}

/// How far a self-test has come.
struct Test<'a> {
    tally: Tally,
    /// The check that runs.
    begun: Option<String>,
    /// Checks that are not over.
    open: Vec<&'a str>,
}

impl<'a> Test<'a> {
    fn of(names: &[&'a str]) -> Self {
        Self {
            tally: Tally::default(),
            begun: None,
            open: names.to_vec(),
        }
    }

    fn checked(&mut self, checked: &Checked) {
        self.begun = None;
        self.open.retain(|it| *it != checked.name);
        self.tally.add(&checked.verdict);
    }

    /// What is to say of the checks that are not over: the one that the host was lost in has failed.
    fn rest(&mut self, lost: Result<(), String>) -> Vec<Checked> {
        let why = lost
            .err()
            .unwrap_or_else(|| "the KVM host left it out".to_owned());
        let verdict = |name: &str| match self.begun.as_deref() == Some(name) {
            true => CheckVerdict::Failed(format!("seen `{why}`, expected an end of the check")),
            false => CheckVerdict::NotAvailable(format!("not made: {why}")),
        };
        let open = self.open.iter().map(|name| Checked {
            name: (*name).to_owned(),
            verdict: verdict(name),
            millis: 0,
        });
        open.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, verdict: CheckVerdict) -> Checked {
        Checked {
            name: name.to_owned(),
            verdict,
            millis: 0,
        }
    }

    #[test]
    fn the_check_that_a_host_is_lost_in_has_failed_and_the_others_were_not_made() {
        let mut test = Test::of(&["a", "b", "c"]);
        test.checked(&checked("a", CheckVerdict::Ok));
        test.begun = Some("b".to_owned());
        let rest = test.rest(Err("it died".to_owned()));
        let told: Vec<_> = rest
            .iter()
            .map(|it| (it.name.as_str(), &it.verdict))
            .collect();
        let failed =
            CheckVerdict::Failed("seen `it died`, expected an end of the check".to_owned());
        let left = CheckVerdict::NotAvailable("not made: it died".to_owned());
        assert_eq!(told, [("b", &failed), ("c", &left)]);
        assert_eq!(test.tally.ok, 1);
    }

    #[test]
    fn a_check_that_a_host_left_out_is_not_ok() {
        let mut test = Test::of(&["a", "b"]);
        test.checked(&checked("b", CheckVerdict::Ok));
        let rest = test.rest(Ok(()));
        let left = CheckVerdict::NotAvailable("not made: the KVM host left it out".to_owned());
        assert_eq!(rest, [checked("a", left)]);
    }
}
