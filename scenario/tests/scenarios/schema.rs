//! The schema that editors read.

#[test]
fn committed_schema_is_current() {
    let committed = include_str!("../../../scenarios/schema.json");
    assert!(
        unwindlab_scenario::schema::schema().unwrap() == committed,
        "run `cargo run -- schema > scenarios/schema.json`"
    );
}
