//! The kernel's deferred unwinding beside a signal with a nonce whose handler unwinds: what comes of the same samples, what a
//! sample costs, and how far the program gets under a storm.
//!
//! - `outcomes`: both designs answer the same NMIs of one trial
//! - `instructions`: one NMI with one design, every instruction of kernel and handler counted by single steps
//! - `storm`: NMIs at a fixed rate with one design

mod instructions;
mod outcomes;
mod storm;

use super::Context;
use super::costs::Unmeasured;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use crate::host::choice::KvmHost;
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::report::costs::NoCost;
use crate::report::designs::Comparison;
use unwindlab_engine::plan::{Executor, TrialPlan};
use unwindlab_oracle::trace::recording::Recording;
use unwindlab_scenario::parse::parse;
use unwindlab_scenario::{Loaded, ResolveError, resolve};

/// How many user frames, on which kernel.
#[derive(Debug, Clone, Default)]
pub struct DesignsRequest {
    /// Depths of the stack.
    pub frames: Vec<u32>,
    /// The kernel to measure.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// A way to get the user's stack.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    /// What the sampler has besides.
    sampler: &'static str,
    /// How the handler unwinds, if it does.
    unwinder: Option<&'static str>,
}

const KERNEL_ONLY: &str = "exclude-callchain-user: true";
/// The first is the one that others are compared with.
const WAYS: [Way; 4] = [
    Way {
        name: "no stack",
        sampler: KERNEL_ONLY,
        unwinder: None,
    },
    Way {
        name: "kernel, deferred",
        sampler: "defer-callchain: true",
        unwinder: None,
    },
    Way {
        name: "signal, frame pointers",
        sampler: KERNEL_ONLY,
        unwinder: Some("frame-pointers"),
    },
    Way {
        name: "signal, .eh_frame",
        sampler: KERNEL_ONLY,
        unwinder: Some("eh-frame"),
    },
];

/// Compares both designs on one kernel, on one KVM host.
///
/// # Errors
/// [`CampaignError`].
pub fn designs(
    request: &DesignsRequest,
    context: Context<'_>,
) -> Result<Comparison, CampaignError> {
    let kernel = context.fetch(&request.kernel.request()?)?;
    let mut bench = Bench {
        host: None,
        kvm_host: request.kvm_host,
        kernel: kernel.as_ref(),
        context,
    };
    bench.restart(None)?;
    let outcomes = outcomes::outcomes(&mut bench)?;
    let instructions = instructions::instructions(&mut bench, &request.frames)?;
    let kvm_host = bench.host.as_ref().map(|it| it.host());
    let storms = storm::storms(&mut bench, &request.frames)?;
    Ok(Comparison {
        outcomes,
        instructions,
        storms,
        release: kernel.release().to_owned(),
        kvm_host: kvm_host.unwrap_or_default(),
    })
}

/// What is measured on.
struct Bench<'a> {
    host: Option<Box<dyn Executor>>,
    kvm_host: KvmHost,
    kernel: &'a dyn TestKernel,
    context: Context<'a>,
}

impl Bench<'_> {
    /// A scenario for this kernel.
    fn plan(&self, loaded: &Loaded) -> Result<TrialPlan, Unmeasured> {
        let (symbols, hash) = (self.kernel.symbols(), self.kernel.hash());
        match resolve(&loaded.file, &loaded.scenario, symbols, hash) {
            Ok(plan) => Ok(plan),
            Err(ResolveError::Unsupported(lack)) => Err(Unmeasured::Lack(lack.to_string())),
            Err(ResolveError::Scenario(errors)) => Err(errors.into()),
        }
    }

    /// Starts a KVM host, in place of the one before; with a seed, a deterministic one.
    fn restart(&mut self, seed: Option<u64>) -> Result<(), CampaignError> {
        self.host = None;
        let request = HostRequest {
            kvm_host: self.kvm_host,
            seed,
            ..HostRequest::default()
        };
        self.host = Some(self.context.start(request, self.kernel)?);
        Ok(())
    }

    fn host(&mut self) -> Result<&mut dyn Executor, Unmeasured> {
        match &mut self.host {
            Some(host) => Ok(host.as_mut()),
            None => Err(Unmeasured::Reason("there is no KVM host".to_owned())),
        }
    }

    /// Runs a trial.
    fn run(&mut self, plan: &TrialPlan) -> Result<Recording, Unmeasured> {
        let progress = self.context.progress;
        let recording = self.host()?.run(plan, progress);
        Ok(recording.map_err(ProviderError::from)?)
    }

    fn say(&self, what: &str) -> Result<(), CampaignError> {
        self.context.progress.step(what);
        self.context.check_interrupt()
    }
}

/// The figures, or why there are none; an error ends the campaign.
fn row<T>(found: Result<T, Unmeasured>) -> Result<Result<T, NoCost>, CampaignError> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Unmeasured::Campaign(error)) => Err(*error),
        Err(Unmeasured::Reason(reason)) => Ok(Err(NoCost::Failed(reason))),
        Err(Unmeasured::Lack(lack)) => Ok(Err(NoCost::Lack(lack))),
    }
}

/// A scenario of a way: workload, what is injected, and more of it.
fn scenario(
    way: &Way,
    kind: &str,
    frames: u32,
    inject: &str,
    more: &str,
) -> Result<Loaded, CampaignError> {
    let user_mode = { way.unwinder }.map(|it| format!("user-mode: {{ unwinder: {it} }}\n"));
    let text = format!(
        "name: designs
description: One way to get a stack.
workload: {{ kind: {kind}, frames: {frames} }}
{}perf:
  ring-pages: 1024
  events:
    - {{ name: tracking, event: dummy, defer-output: true, task: true }}
    - {{ name: nmi, event: 'nmi:nmi_handler', period: 1, output-to: tracking, sample: [ip, callchain], {} }}
inject:
  - nmi: {{ {inject} }}
{more}",
        user_mode.unwrap_or_default(),
        way.sampler
    );
    Ok(Loaded {
        file: "designs".to_owned(),
        scenario: parse("designs", &text)?,
        text,
        snapshot: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_a_scenario() {
        for way in &WAYS {
            let loaded = scenario(way, "deep", 10, instructions::INJECT, "").unwrap();
            assert_eq!(loaded.scenario.user_mode.is_some(), way.unwinder.is_some());
            scenario(way, "spin", 300, storm::INJECT, storm::MORE).unwrap();
        }
    }
}
