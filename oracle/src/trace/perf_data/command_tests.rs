//! What the command line and the header of a recording say of its events.

use super::tests::{File, of_two_cpus, read};
use super::{PerfData, PerfDataError};

/// A recording that is another one so far.
fn with(change: impl FnOnce(&mut File)) -> Result<PerfData, PerfDataError> {
    let mut file = File::new(false);
    change(&mut file);
    read(&of_two_cpus(file).file())
}

/// Whether each occurrence of the clock gave a sample, and whether tasks inherit it.
fn clock(change: impl FnOnce(&mut File)) -> (bool, bool) {
    let data = with(change).unwrap();
    let spec = &data.trace.tracing.as_ref().unwrap().events[0];
    (spec.filter.is_none(), spec.inherit)
}

#[test]
fn a_command_that_leaves_samples_out_says_so() {
    let everything = |command| clock(|file| file.command = command).0;
    assert!(everything(Some(&["perf", "record", "-a"])));
    assert!(!everything(Some(&["perf", "record", "--filter", "x"])));
    assert!(!everything(Some(&["perf", "record", "--exclude-perf"])));
    assert!(!everything(None), "nobody says what it was");
}

#[test]
fn events_of_tasks_are_inherited_and_those_of_all_cpus_are_not() {
    let inherits = |tid: u64, command: &'static [&str]| {
        let change = |file: &mut File| (file.tid, file.command) = (tid, Some(command));
        clock(change).1
    };
    assert!(inherits(7, &["perf", "record", "ls"]));
    assert!(!inherits(7, &["perf", "record", "-a"]));
    assert!(!inherits(7, &["perf", "record", "--all-cpus"]));
    assert!(!inherits(u64::MAX, &["perf", "record", "ls"]));
}

#[test]
fn a_cpu_that_was_on_and_wrote_nothing_was_not_recorded() {
    let every = |online| {
        let data = with(|file| file.online = online).unwrap();
        data.trace.recorded.unwrap().every_cpu
    };
    assert!(every(2));
    assert!(!every(3));
}

#[test]
fn one_file_of_a_folder_is_unsuitable() {
    let error = with(|file| file.is_of_folder = true).unwrap_err();
    assert!(error.to_string().contains("several files of a folder"));
}
