//! The guest as it speaks to its host: mailbox, page tables, and the channel out of the outer machine.

use std::borrow::Cow;
use std::cell::RefCell;

use kvm_bindings::kvm_sregs;
use unwindlab_abi::ABI_VERSION;
use unwindlab_abi::message::AgentMessage;
use unwindlab_engine::driver::conversation::{self, Heard, Said};
use unwindlab_engine::host::channel::{self, FromHost, ToHost};
use unwindlab_engine::sweep::printk::printed;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_vmm::{AddressSpace, Memory};

use crate::plans;
use crate::recordings;
use crate::take::Input;

/// Bytes of guest memory that targets use; the rest stays zero.
const USED: usize = 1 << 20;

thread_local! {
    /// One memory for all runs: a mapping costs more than what is done with it.
    static MEMORY: RefCell<Option<Memory>> = const { RefCell::new(None) };
}

/// Runs with guest memory that is all zeros.
fn with_memory<T>(run: impl FnOnce(&Memory) -> T) -> Option<T> {
    MEMORY.with_borrow_mut(|memory| {
        if memory.is_none() {
            *memory = Memory::new(4).ok();
        }
        let memory = memory.as_ref()?;
        let _ = memory.write(0, &vec![0; USED]);
        Some(run(memory))
    })
}

/// A conversation: which plan; then message after message, each a kind and a piece. Between the messages the guest writes over
/// its memory.
pub(crate) fn session(data: &[u8]) {
    let plan = plans::plan(Input(data).u8());
    let Some(heard) = converse(data) else {
        return;
    };
    if heard.end == Some(TrialEnd::Completed) {
        let began = heard.messages.first();
        let rightly = |it: &AgentMessage| {
            matches!(it, AgentMessage::Hello { abi_version, cpus, .. }
                    if *abi_version == ABI_VERSION && *cpus == u32::from(plans::VCPUS))
        };
        assert!(
            began.is_some_and(rightly),
            "completed, and began with {began:?}"
        );
        let at = |wanted: &AgentMessage| {
            let same =
                |it: &AgentMessage| std::mem::discriminant(it) == std::mem::discriminant(wanted);
            let all: Vec<usize> = { heard.messages.iter() }
                .enumerate()
                .filter(|it| same(it.1))
                .map(|it| it.0)
                .collect();
            assert_eq!(
                all.len(),
                1,
                "completed with {} times {wanted:?}",
                all.len()
            );
            all.first().copied()
        };
        let ready = at(&AgentMessage::Ready);
        let finished = at(&AgentMessage::Finished {
            iterations: Vec::new(),
        });
        let bye = at(&AgentMessage::Bye);
        assert!(ready < finished && finished < bye, "completed out of order");
        assert_eq!(
            heard.recording.threads.len(),
            plan.workload.threads as usize
        );
    }
    recordings::judge(&heard.recording);
}

/// Holds the conversation that an input says.
fn converse(data: &[u8]) -> Option<Heard> {
    let mut input = Input(data);
    let plan = plans::plan(input.u8());
    with_memory(|memory| {
        let mut said = Vec::new();
        while !input.is_empty() {
            let kind = input.u8();
            let piece = input.piece();
            said.push(match kind % 4 {
                0 | 1 => Said::Message(todays(piece)),
                2 => Said::Mailbox(piece),
                _ => Said::Scribble(u32::from(input.u16()) * 8, piece),
            });
        }
        conversation::hold(memory, &plan, plans::VCPUS, &said)
    })
}

/// A message of the corpus, whose agents speak version 0: that stands for today's, lest each new version leave them all behind.
fn todays(message: &[u8]) -> Cow<'_, [u8]> {
    match postcard::from_bytes(message) {
        Ok(AgentMessage::Hello {
            abi_version: 0,
            release,
            cpus,
        }) => {
            let hello = AgentMessage::Hello {
                abi_version: ABI_VERSION,
                release,
                cpus,
            };
            postcard::to_allocvec(&hello).map_or(Cow::Borrowed(message), Cow::Owned)
        }
        _ => Cow::Borrowed(message),
    }
}

/// Page tables in the first 64 KiB: an address, registers, then the memory.
pub(crate) fn page_tables(data: &[u8]) {
    const TABLES: usize = 64 << 10;
    let mut input = Input(data);
    let (address, cr3, modes) = (input.u64(), input.u64(), input.u8());
    let on = |bit: u8, value: u64| if modes & bit == 0 { value } else { 0 };
    let sregs = kvm_sregs {
        cr0: on(1, 1 << 31),
        efer: on(2, 1 << 10),
        cr4: if modes & 4 == 0 { 0 } else { 1 << 12 },
        cr3,
        ..kvm_sregs::default()
    };
    let _ = with_memory(|memory| {
        while !input.is_empty() {
            let at = u64::from(input.u16()) * 8 % TABLES as u64;
            let _ = memory.write(at, input.piece());
        }
        let space = AddressSpace::of(&sregs);
        for address in [address, !address, address.wrapping_add(4096), address << 16] {
            let found = space.translate(memory, address);
            // What is in a page stays in it.
            assert!(found.is_none_or(|it| it % 4096 == address % 4096));
            assert_eq!(
                found,
                space.translate(memory, address),
                "walked again, it is elsewhere"
            );
        }
    });
}

/// The kernel's ring of messages: guest memory, which is mapped at an offset.
pub(crate) fn printk(data: &[u8]) {
    const OFFSET: u64 = 0xffff_ffff_8000_0000;
    let _ = with_memory(|memory| {
        let _ = memory.write(0, data);
        let read =
            |address: u64, into: &mut [u8]| memory.read(address.wrapping_sub(OFFSET), into).ok();
        let text = printed(memory, 0, &read);
        assert!(text.is_empty() || text.starts_with('<') && text.ends_with('\n'));
    });
}

/// The channel between the command and the outer machine, in both directions.
pub(crate) fn channel(data: &[u8]) {
    let mut rest = data;
    while let Ok(message) = channel::receive::<FromHost>(&mut rest) {
        let mut wire = Vec::new();
        assert!(channel::send(&mut wire, &message).is_ok());
        let again = channel::receive::<FromHost>(&mut wire.as_slice());
        assert_eq!(
            again.ok().map(|it| format!("{it:?}")),
            Some(format!("{message:?}"))
        );
    }
    rest = data;
    while channel::receive::<ToHost>(&mut rest).is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_whole_conversation() {
        let seed = include_bytes!("../corpus/session/nmi-in-syscall");
        let heard = converse(seed);
        assert_eq!(heard.map(|it| it.end), Some(Some(TrialEnd::Completed)));
    }
}
