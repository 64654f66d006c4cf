//! Makes inputs of recordings: `seeds FILE...`, each a `Recording` as JSON, whose name is that of the inputs. Writes into the corpus.

#![allow(clippy::unwrap_used, reason = "run by hand")]

use std::fs;
use std::path::Path;

use unwindlab_abi::message::AgentMessage;
use unwindlab_abi::tracefs::TracefsPart;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::framing::Records;

/// Most bytes that are kept of a ring and of a log.
const RING: usize = 1500;
const LOG: usize = 64 * 40;

fn main() {
    for path in std::env::args().skip(1) {
        let path = Path::new(&path);
        let name = path.file_stem().unwrap();
        let name = name.to_string_lossy();
        let whole: Recording = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let small = cut(whole.clone());
        write("recording", &name, &postcard::to_allocvec(&small).unwrap());
        write(
            "recording-json",
            &name,
            &serde_json::to_vec(&small).unwrap(),
        );
        let mut pieces = small.ring_bytes.iter().map(|it| it.bytes.clone());
        let first = pieces.next().unwrap_or_default();
        write("ring", &name, &ring(&first));
        write("ring", &format!("{name}-backward"), &backward(&first));
        let rest: Vec<u8> = pieces.flatten().collect();
        write("records", &name, &[piece(&first), rest].concat());
        if !small.rings.is_empty() {
            write("session", &name, &session(&small));
        }
        if let Some(log) = &small.lab {
            let head = u16::try_from(log.bytes.len() / 64).unwrap().to_le_bytes();
            write("lab-log", &name, &[&[0, 0], &head[..], &log.bytes].concat());
        }
        if let Some(log) = &small.user_mode {
            let produced = (log.ring.len() as u64).to_le_bytes();
            let results = log.results.iter().take(4).flat_map(|it| {
                let mut page: Vec<u8> = it.iter().flat_map(|word| word.to_le_bytes()).collect();
                page.resize(4096, 0);
                page
            });
            let mut bytes = [produced, 4_u64.to_le_bytes()].concat();
            bytes.extend(piece(&log.ring));
            bytes.extend(results);
            while bytes.last() == Some(&0) {
                bytes.pop();
            }
            write("user-mode", &name, &bytes);
        }
        if let Some(pages) = small.tracefs.as_ref().and_then(|it| it.held.pages.first()) {
            // No format file is replaced: there is no fourth.
            let mapped = [&[3, 0, 0], pages.bytes.as_slice()].concat();
            write("tracefs", &name, &mapped);
            let part = TracefsPart::Pages {
                instance: pages.instance,
                life: pages.life,
                cpu: pages.cpu,
                bytes: pages.bytes.clone(),
            };
            let sent = [&[7, 0, 0][..], &postcard::to_allocvec(&part).unwrap()].concat();
            write("tracefs", &format!("{name}-sent"), &sent);
        }
        if let Some(text) = &small.perf_script {
            write("perf-script", &name, text.as_bytes());
        }
        let mut wire = Vec::new();
        use unwindlab_engine::host::channel::{FromHost, send};
        let (version, release) = ("0.1.0".to_owned(), small.release.clone());
        send(&mut wire, &FromHost::Hello { version, release }).unwrap();
        send(&mut wire, &FromHost::Recording(Box::new(small))).unwrap();
        write("channel", &name, &wire);
    }
}

/// Less of everything, in whole records.
fn cut(mut it: Recording) -> Recording {
    for ring in &mut it.ring_bytes {
        let mut records = Records::new(&ring.bytes);
        let mut end = 0;
        while records.next().is_some_and(|record| record.is_ok()) && records.offset() <= RING {
            end = records.offset();
        }
        ring.bytes.truncate(end);
    }
    if let Some(log) = &mut it.lab {
        log.bytes.truncate(LOG);
        log.head = log.head.min((LOG / 64) as u64);
    }
    if let Some(log) = &mut it.user_mode {
        log.ring.truncate(RING);
        log.results.truncate(4);
    }
    for pages in it.tracefs.iter_mut().flat_map(|it| &mut it.held.pages) {
        pages.bytes.truncate(4096);
    }
    if let Some(text) = &mut it.perf_script {
        let end = text.floor_char_boundary(2000);
        text.truncate(end);
    }
    it.console.clear();
    it.kernel_log.clear();
    it.user_symbols.truncate(8);
    it.injections.truncate(6);
    it.program.stacks.truncate(6);
    if let Some(witness) = &mut it.witness {
        // Most returns are of tasks that wrote nothing.
        witness
            .returns
            .dedup_by(|it, before| it.heads == before.heads);
        witness.returns.truncate(6);
    }
    it.survey.truncate(6);
    it
}

fn piece(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap().to_le_bytes();
    [&length[..], bytes].concat()
}

/// A ring of one page that is written in two goes.
fn ring(bytes: &[u8]) -> Vec<u8> {
    let mut input = vec![1];
    input.extend(0_u64.to_le_bytes());
    let mut records = Records::new(bytes);
    let _ = { &mut records }.take(3).count();
    for end in [records.offset(), bytes.len()] {
        input.extend((end as u64).to_le_bytes());
        input.extend([0, 0]);
        input.extend(piece(bytes));
    }
    input
}

/// A ring of one page that is written backwards, with three records.
fn backward(bytes: &[u8]) -> Vec<u8> {
    let mut records = Records::new(bytes);
    let _ = { &mut records }.take(3).count();
    let end = records.offset();
    let mut input = vec![1 | 16];
    input.extend(0_u64.to_le_bytes());
    input.extend((end as u64).wrapping_neg().to_le_bytes());
    input.extend(u16::try_from(4096 - end).unwrap().to_le_bytes());
    input.extend(piece(bytes.get(..end).unwrap()));
    input
}

/// The conversation by which a recording may have come about, as plan 0 has it.
fn session(of: &Recording) -> Vec<u8> {
    let page = |number: u64| number * 4096;
    let mut ring = of.rings.first().cloned().unwrap();
    (ring.control_page, ring.data_pages, ring.ring) = (page(1), vec![page(2)], 0);
    let mut said: Vec<AgentMessage> = vec![
        AgentMessage::Hello {
            // Today's, whenever that is: see `todays` in src/guest.rs.
            abi_version: 0,
            release: of.release.clone(),
            cpus: 2,
        },
        AgentMessage::Task,
        AgentMessage::Locate {
            start: 4096,
            pages: 2,
        },
    ];
    for cpu in 0..2 {
        let mut ring = ring.clone();
        (ring.ring, ring.cpu) = (cpu, cpu);
        (ring.control_page, ring.data_pages) = (
            page(1 + 2 * u64::from(cpu)),
            vec![page(2 + 2 * u64::from(cpu))],
        );
        said.push(AgentMessage::Ring(ring));
        let id = u64::from(cpu) + 1;
        said.push(AgentMessage::Event(unwindlab_abi::message::EventAnnounce {
            spec: 0,
            cpu,
            id,
            ring: cpu,
        }));
    }
    said.push(AgentMessage::Shared {
        pages: (5..10).map(page).collect(),
    });
    let mut thread = of.threads.first().cloned().unwrap();
    thread.thread = 0;
    said.push(AgentMessage::Thread(thread));
    said.push(AgentMessage::Symbols(of.user_symbols.clone()));
    said.push(AgentMessage::Program(of.program.clone()));
    said.push(AgentMessage::Ready);
    said.push(AgentMessage::Finished {
        iterations: vec![1],
    });
    said.extend(
        of.observations
            .iter()
            .take(3)
            .cloned()
            .map(AgentMessage::Observed),
    );
    said.push(AgentMessage::KernelLog("<6>[    1.000000] x\n".to_owned()));
    said.push(AgentMessage::Bye);
    let mut bytes = vec![0];
    for message in said {
        if message == AgentMessage::Ready {
            let data = of.ring_bytes.iter().find(|it| !it.bytes.is_empty());
            let data = data.map(|it| it.bytes.clone()).unwrap_or_default();
            for (at, what) in [
                (page(2), data.clone()),
                (page(1) + 1024, (data.len() as u64).to_le_bytes().to_vec()),
            ] {
                bytes.push(3);
                let length = u16::try_from(what.len()).unwrap().to_le_bytes();
                bytes.extend(length);
                bytes.extend(&what);
                bytes.extend(u16::try_from(at / 8).unwrap().to_le_bytes());
            }
        }
        bytes.push(0);
        bytes.extend(piece(&postcard::to_allocvec(&message).unwrap()));
    }
    bytes
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder).unwrap();
    let longest = unwindlab_fuzz::find(target).unwrap().longest;
    if bytes.len() > longest {
        println!("{target}/{name}: {} bytes are too many", bytes.len());
        return;
    }
    fs::write(folder.join(name), bytes).unwrap();
}
