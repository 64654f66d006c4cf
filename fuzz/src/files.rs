//! Files that a user names: scenarios, replay files, sweeps to resume, mails.

use unwindlab::campaign::replay_file::Replay;
use unwindlab::judge::sweep_record::SweepRecord;
use unwindlab_guest_kernel::build::series::Series;
use unwindlab_scenario::parse::parse;

use crate::take::Input;

/// A scenario's YAML, up to where a kernel is needed.
pub(crate) fn scenario(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = parse("fuzz.yaml", &text).map(|it| format!("{it:?}").len());
    if let Err(errors) = parse("fuzz.yaml", &text) {
        assert!(!errors.to_string().is_empty());
    }
}

/// A replay file, and the scenario in it.
pub(crate) fn replay(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(replay) = Replay::parse(&text) else {
        return;
    };
    scenario(replay.scenario.as_bytes());
    let written = serde_json::to_string(&replay).unwrap_or_default();
    assert_eq!(Replay::parse(&written).ok().as_ref(), Some(&replay));
    assert!(!replay.name.contains(['/', '.']), "a name that is a path");
}

/// What a sweep has found, of whatever sweep it is.
pub(crate) fn resume(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(record) = SweepRecord::read(&text) else {
        return;
    };
    let (of, shard) = (&record.identity, record.shard);
    assert!(record.done().len() >= record.tried.len().min(1));
    let written = serde_json::to_string(&record).unwrap_or_default();
    assert_eq!(
        SweepRecord::parse(&written, of, shard).ok().as_ref(),
        Some(&record)
    );
}

/// Mails as git decodes them: subject, text and diff of each.
pub(crate) fn mails(data: &[u8]) {
    let mut input = Input(data);
    let mut mails = Vec::new();
    while !input.is_empty() {
        let subject = String::from_utf8_lossy(input.piece()).into_owned();
        mails.push((subject, input.piece(), input.piece()));
    }
    let count = mails.len();
    let series = Series::of_decoded(
        mails
            .iter()
            .map(|(subject, text, diff)| (subject.as_str(), *text, *diff)),
    );
    let left_out = &series.left_out;
    let out = left_out.covers + left_out.replies + left_out.superseded + left_out.without_diff;
    assert_eq!(series.patches().count() + out, count, "a mail is lost");
}
