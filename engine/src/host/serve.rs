//! The host's side of the channel: orders are carried out, one after the other, until it closes.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::channel::{self, ChannelError, FromHost, ToHost};
use super::native::Native;
use super::self_test;
use crate::plan::TrialPlan;
use crate::plan::measurement::NotMeasured;
use crate::plan::sweep::Message;

/// What is special about the place where orders are carried out.
pub(super) trait Place {
    /// Prepares for an order.
    ///
    /// # Errors
    /// Why it cannot be.
    fn prepare(&self, order: &ToHost) -> anyhow::Result<()>;

    /// Keeps the image of a kernel under test, which is so many bytes of `image`; its path.
    ///
    /// # Errors
    /// Where it cannot be kept, or kernels are given otherwise here.
    fn keep_kernel(
        &self,
        _hash: &str,
        _bytes: u64,
        _image: &mut dyn Read,
    ) -> anyhow::Result<PathBuf> {
        anyhow::bail!("this KVM host was given its kernels at its start")
    }

    /// Gives back what memory can be given back.
    fn rest(&self) {}
}

/// Says hello, and carries out orders.
pub(super) fn serve(
    native: anyhow::Result<Native>,
    port: &mut (impl Read + Write),
    place: &dyn Place,
) -> anyhow::Result<()> {
    let mut native = match native {
        Ok(native) => native,
        Err(error) => {
            let reason = format!("{error:#}");
            return Ok(channel::send(port, &FromHost::Unfit { reason })?);
        }
    };
    let release = rustix::system::uname();
    let hello = FromHost::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        release: release.release().to_string_lossy().into_owned(),
    };
    channel::send(port, &hello)?;
    loop {
        match channel::receive(port) {
            Ok(order) => carry_out(order, &mut native, port, place)?,
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends messages of a sweep in one write.
fn send_together(messages: Vec<Message>, port: &mut impl Write) -> Result<(), ChannelError> {
    let mut bytes = Vec::new();
    for message in messages {
        channel::send(&mut bytes, &FromHost::Sweep(Box::new(message)))?;
    }
    let sent = port.write_all(&bytes).and_then(|()| port.flush());
    sent.map_err(ChannelError::Io)
}

/// Carries out an order and sends its answers.
fn carry_out(
    order: ToHost,
    native: &mut Native,
    port: &mut (impl Read + Write),
    place: &dyn Place,
) -> anyhow::Result<()> {
    place.prepare(&order)?;
    let last = match order {
        ToHost::Run(plan) | ToHost::RunInTurns { plan, .. } => trial(&plan, native, port)?,
        ToHost::Sweep(plan) => {
            let mut sent = Ok(());
            native.sweep(&plan, &mut |messages| {
                sent = send_together(messages, port);
                sent.is_ok()
            });
            return Ok(sent?);
        }
        // A command that does not want to wait ends the whole machine.
        ToHost::Bench(order) => {
            FromHost::Bench(native.bench(&order, &|| true).map_err(NotMeasured::from))
        }
        ToHost::SelfTest { limit_ms } => {
            let mut sent = Ok(());
            self_test::run(Duration::from_millis(limit_ms), &mut |message| {
                sent = channel::send(port, &FromHost::SelfTest(message));
                sent.is_ok()
            });
            return Ok(sent?);
        }
        ToHost::Kernel { hash, bytes } => {
            let path = place.keep_kernel(&hash, bytes, port)?;
            native.add_kernel(hash, path);
            return Ok(());
        }
        ToHost::Ping => native.idle(),
        ToHost::Rest => {
            place.rest();
            native.idle()
        }
    };
    Ok(channel::send(port, &last)?)
}

/// Runs a trial and sends its progress; its last answer.
fn trial(
    plan: &TrialPlan,
    native: &mut Native,
    port: &mut impl Write,
) -> Result<FromHost, ChannelError> {
    let mut sent = Ok(());
    let recording = native.run(plan, &mut |progress| {
        sent = channel::send(port, &FromHost::Progress(progress.clone()));
        sent.is_ok()
    });
    sent.map(|()| FromHost::Recording(Box::new(recording)))
}
