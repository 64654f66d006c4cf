//! The init of the guest. The kernel panics when it ends, so it never does.

use unwindlab_abi::{AgentMessage, EXIT_AFTER_CHAIN, EXIT_AT_ONCE};
use unwindlab_agent::mailbox::Link;
use unwindlab_agent::session;

fn main() {
    let first = std::env::args_os().nth(1);
    if { first.as_ref() }.is_some_and(|it| it.as_encoded_bytes() == EXIT_AT_ONCE.to_bytes()) {
        return;
    }
    if first.is_some_and(|it| it.as_encoded_bytes() == EXIT_AFTER_CHAIN.to_bytes()) {
        let rest: Vec<String> = std::env::args().skip(2).collect();
        std::process::exit(unwindlab_agent::workload::after_exec(&rest));
    }
    std::panic::set_hook(Box::new(|info| {
        report(&format!("the agent panicked: {info}"));
        sleep_forever();
    }));
    if let Err(error) = session::run() {
        say(&error.to_string());
    }
    sleep_forever();
}

/// Tells the host by a new mailbox, because the usual one may be in use.
fn report(what: &str) {
    say(what);
    let what = what.to_owned();
    if let Ok(mut link) = Link::new() {
        // The answer does not matter any more.
        let _ = link.ask(&AgentMessage::Failed { what });
    }
}

/// To the guest's console, if it has one.
fn say(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "unwindlab-agent: {what}");
}

fn sleep_forever() -> ! {
    loop {
        std::thread::park();
    }
}
