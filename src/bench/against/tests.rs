use super::*;
use crate::bench::rows::{PeerSeries, QEMU, Row};

const ROUNDS: [f64; 5] = [2.0, 2.1, 2.2, 2.05, 2.15];

fn machine(cpu: &str) -> Machine {
    Machine {
        cpu: cpu.to_owned(),
        cores: 2,
        load: [0.1, 0.2],
        program: "abc".to_owned(),
    }
}

fn line(factor: f64, peers: f64) -> Line {
    let series = |factor: f64| Series {
        values: ROUNDS.iter().map(|it| it * factor).collect(),
        failed: None,
    };
    Line {
        row: Row::Boot,
        what: "a start",
        unit: "s",
        better: Better::Less,
        ours: series(factor),
        peer: Some(PeerSeries {
            name: QEMU,
            series: series(peers),
        }),
        promises: Vec::new(),
        notes: Vec::new(),
        parameters: Vec::new(),
    }
}

/// The line of a file, as `report::bench` writes it.
fn record(line: &Line, machine: &Machine) -> serde_json::Value {
    let mut record = serde_json::to_value(line).unwrap();
    record["schema"] = crate::bench::SCHEMA.into();
    record["kernel-hash"] = "k".into();
    record["kvm-host"] = "emulated (outer kernel 6.12, saved; why)".into();
    record["machine"] = serde_json::to_value(machine).unwrap();
    record
}

fn changes(today: &[Line], records: &[serde_json::Value], kernel: &str) -> Vec<LineChange> {
    let text: String = records.iter().map(|it| format!("{it}\n")).collect();
    let here = machine("here");
    let today = Today {
        lines: today,
        machine: &here,
        kernel,
        kvm_host: "emulated (outer kernel 6.12; another reason)",
    };
    compare(today, &read(&text).unwrap())
}

/// What became of ours and of the ratio.
fn verdicts(change: &LineChange) -> Vec<Result<Change, String>> {
    let verdict = |figure: &Figure| match &figure.verdict {
        Ok(compared) => Ok(compared.change),
        Err(why) => Err(why.to_string()),
    };
    change.figures.iter().map(verdict).collect()
}

#[test]
fn ours_and_the_ratio_are_compared_each_by_itself() {
    let before = record(&line(1.0, 1.0), &machine("here"));
    let of = |ours, peers| {
        verdicts(&changes(&[line(ours, peers)], std::slice::from_ref(&before), "k")[0])
    };
    let same = Ok(Change::WithinNoise);
    assert_eq!(of(1.0, 1.0), [same.clone(), same.clone()]);
    // The machine is twice as slow today, for both.
    assert_eq!(of(2.0, 2.0), [Ok(Change::Worse), same.clone()]);
    assert_eq!(of(2.0, 1.0), [Ok(Change::Worse), Ok(Change::Worse)]);
    assert_eq!(of(0.5, 1.0), [Ok(Change::Better), Ok(Change::Better)]);
    assert_eq!(of(1.0, 0.5), [same, Ok(Change::Worse)]);
}

#[test]
fn of_another_machine_only_ratios_are_comparable() {
    let before = record(&line(1.0, 1.0), &machine("elsewhere"));
    let changes = changes(&[line(2.0, 1.0)], &[before], "k");
    assert_eq!(
        verdicts(&changes[0]),
        [
            Err("another machine: elsewhere, 2 cores".to_owned()),
            Ok(Change::Worse)
        ]
    );
    assert!(changes[0].is_worse());
}

#[test]
fn a_file_without_a_machine_is_of_an_unknown_one() {
    let mut before = record(&line(1.0, 1.0), &machine("here"));
    before["machine"] = serde_json::Value::Null;
    let verdicts = verdicts(&changes(&[line(2.0, 2.0)], &[before], "k")[0]);
    assert_eq!(
        verdicts[0],
        Err("the file does not say on which machine it was measured".to_owned())
    );
}

#[test]
fn what_was_measured_otherwise_is_not_comparable() {
    let before = record(&line(1.0, 1.0), &machine("here"));
    let with = |key: &str, value: serde_json::Value| {
        let mut other = before.clone();
        other[key] = value;
        let changes = changes(&[line(2.0, 1.0)], &[other], "k");
        assert!(!changes[0].is_compared() && !changes[0].is_worse());
        verdicts(&changes[0])[1].clone().unwrap_err()
    };
    assert_eq!(with("kernel-hash", "other".into()), "another kernel: other");
    assert_eq!(
        with("kvm-host", "native (why)".into()),
        "another KVM host: native, why"
    );
    assert_eq!(with("unit", "ms".into()), "another unit: ms");
    assert_eq!(with("peer", serde_json::Value::Null), "another peer: none");
    assert_eq!(
        with("parameters", vec!["run x"].into()),
        "another way to measure: run x"
    );
}

#[test]
fn a_line_that_one_side_lacks_is_told() {
    let mut other = line(1.0, 1.0);
    other.what = "another start";
    let changes = changes(&[line(1.0, 1.0)], &[record(&other, &machine("here"))], "k");
    let missing: Vec<_> = changes
        .iter()
        .map(|it| (it.what.as_str(), it.missing))
        .collect();
    assert_eq!(
        missing,
        [
            ("a start", Some(Side::Earlier)),
            ("another start", Some(Side::Today))
        ]
    );
    // A new figure has nothing to be compared with; what nobody asked for today is no lack.
    let compared: Vec<bool> = changes.iter().map(LineChange::is_compared).collect();
    assert_eq!(compared, [false, true]);
}

#[test]
fn what_could_not_be_measured_or_too_seldom_says_nothing() {
    let mut once = line(1.0, 1.0);
    once.ours.values.truncate(1);
    once.peer.as_mut().unwrap().series.values.truncate(1);
    let changes_of = |today: Line, before: Line| {
        changes(&[today], &[record(&before, &machine("here"))], "k").remove(0)
    };
    let few = changes_of(line(3.0, 1.0), once);
    assert!(!few.is_compared());
    let why = verdicts(&few)[0].clone().unwrap_err();
    assert!(why.starts_with("too few rounds"), "{why}");

    let mut broken = line(1.0, 1.0);
    broken.ours = Series::impossible("gone");
    let failed = changes_of(broken.clone(), line(1.0, 1.0));
    assert_eq!(
        verdicts(&failed)[0],
        Err("it could not be measured today".to_owned())
    );
    let failed = changes_of(line(1.0, 1.0), broken);
    assert_eq!(
        verdicts(&failed)[0],
        Err("it could not be measured earlier".to_owned())
    );
}

#[test]
fn a_file_of_anything_else_is_refused_with_its_place() {
    let good = record(&line(1.0, 1.0), &machine("here"));
    let with = |key: &str, value: serde_json::Value| {
        let mut other = good.clone();
        other[key] = value;
        other.to_string()
    };
    let whole = good.to_string();
    let cut = &whole[..whole.len() / 2];
    let deep = "[".repeat(100_000);
    let values = |values: serde_json::Value| {
        let mut ours = good["ours"].clone();
        ours["values"] = values;
        with("ours", ours)
    };
    let many = values(vec![1.0; MOST + 1].into());
    let cases = [
        (String::new(), "no figures in it"),
        (format!("{whole}\n{cut}"), "line 2: the file is cut off"),
        (format!("{whole}\nnot JSON"), "line 2: expected"),
        (
            format!("{whole}\n{whole}"),
            "line 2: `a start` was there before",
        ),
        (deep, "line 1: "),
        (
            with("schema", "unwindlab.bench/9".into()),
            "line 1: its schema",
        ),
        (
            values(vec![1.0, -1.0].into()),
            "line 1: -1 is no measurement",
        ),
        (values(vec![0.0].into()), "line 1: 0 is no measurement"),
        (values(vec![1.0].into()), "line 1: 1 rounds of ours and 5"),
        (many, "line 1: 1001 rounds"),
        (whole.replace("2.05", "1e999"), "line 1: "),
        ("{}".to_owned(), "line 1: missing field"),
    ];
    for (text, expected) in cases {
        let error = read(&text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
}

const MOST: usize = crate::bench::MOST_ROUNDS as usize;
