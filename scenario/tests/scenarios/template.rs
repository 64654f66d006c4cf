//! The scenario that `new` writes.

use unwindlab_scenario::template::named;

const IDS: [&str; 4] = ["C2", "M1", "M3", "S1"];

#[test]
fn it_is_a_scenario_of_its_name() {
    let text = named("my-own", &IDS).unwrap();
    assert!(text.contains("\nname: my-own\n") && !text.contains("NAME"));
}

#[test]
fn a_name_that_no_scenario_may_have_is_refused() {
    for name in ["", "My Own", "../x", "a: b", "x\ny"] {
        assert!(named(name, &IDS).is_err(), "{name:?}");
    }
}
