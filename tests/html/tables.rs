//! The reports of mutants and variants.

use std::fs;
use std::time::Duration;

use unwindlab::judge::outcome::Outcome;
use unwindlab::report::comparison::{DesignColumn, DesignTable};
use unwindlab::report::figures::Figures;
use unwindlab::report::html;
use unwindlab::report::matrix::{Cell, Fate, Matrix, MutantRow};

use crate::browser::Browser;
use crate::common::scratch;
use crate::{browser, quiet};

fn row(name: &str, falls: &[&str], cells: &[(&str, Cell)], fate: Fate) -> MutantRow {
    MutantRow {
        name: name.to_owned(),
        falls: falls.iter().map(ToString::to_string).collect(),
        cells: cells
            .iter()
            .map(|(name, cell)| ((*name).to_owned(), cell.clone()))
            .collect(),
        fate,
    }
}

fn fell(names: &[&str]) -> Cell {
    Cell::Fell(names.iter().map(ToString::to_string).collect())
}

/// Presses keys, and says what is said.
fn said(browser: &mut Browser, keys: &[&str]) -> String {
    for key in keys {
        browser.press(key);
    }
    let says = browser.eval("document.querySelector('.says').textContent");
    says.as_str().unwrap().to_owned()
}

#[test]
fn a_kill_matrix_is_read_by_keys() {
    let Some(mut browser) = browser() else { return };
    let file = scratch("html-mutants").join("mutants.html");
    let mut matrix = Matrix::new(vec!["one".to_owned(), "</script>".to_owned()]);
    let pass = || [("one", Cell::Pass), ("</script>", Cell::Pass)];
    matrix.rows = vec![
        row("(no mutant)", &[], &pass(), Fate::Clean),
        row(
            "torn-id",
            &["C4", "M1"],
            &[("one", fell(&["C4", "C7"])), ("</script>", Cell::Pass)],
            Fate::Killed,
        ),
        row(
            "survivor",
            &["M1"],
            &[("one", fell(&["C7"]))],
            Fate::Misjudged(vec!["C7".to_owned()]),
        ),
        row(
            "slow",
            &["M1"],
            &[("one", Cell::Untested(Outcome::Timeout))],
            Fate::Untested("no".to_owned()),
        ),
    ];
    fs::write(
        &file,
        html::matrix::html(&matrix, Duration::from_secs(9)).unwrap(),
    )
    .unwrap();
    browser.open(&file);
    let cells = "[...document.querySelectorAll('tbody tr')].map(it => [...it.cells].map(it => it.textContent).join('|')).join(' / ')";
    assert_eq!(
        browser.eval(cells),
        "✓ (no mutant)|·|· / ✓ torn-id|✓ C4 +1|· / ✗ survivor|✗ +1| / – slow|timeout|"
    );
    browser.eval("document.querySelector('tbody [tabindex=\"0\"]').focus()");
    let told = said(&mut browser, &["ArrowDown", "ArrowRight"]);
    assert_eq!(told, "torn-id, one: C4, C7 fell");
    let told = said(&mut browser, &["ArrowDown", "Home"]);
    assert_eq!(told, "survivor: killed by C7, not by M1; named for it: M1");
    browser.eval("document.querySelectorAll('.tabs button')[1].focus()");
    browser.press("Enter");
    assert_eq!(
        browser.eval(cells),
        "✓ (no mutant)||| / ✓ torn-id|✓ 1|+ 1|○ / ✗ survivor||+ 1|○ / – slow|||○"
    );
    quiet(&browser);
}

#[test]
fn designs_are_plotted() {
    let Some(mut browser) = browser() else { return };
    let file = scratch("html-variants").join("variants.html");
    let column = |name: &str, way_out, died: &[&str]| DesignColumn {
        name: name.to_owned(),
        figures: Figures {
            way_out: Some(way_out),
            ..Figures::default()
        },
        died: died.iter().map(ToString::to_string).collect(),
        ..DesignColumn::default()
    };
    let not_built = DesignColumn {
        name: "B".to_owned(),
        error: Some("does not compile".to_owned()),
        ..DesignColumn::default()
    };
    let table = DesignTable {
        columns: vec![
            column("(as it is)", 100, &[]),
            column("A", 150, &["x (hang)"]),
            not_built,
        ],
    };
    fs::write(
        &file,
        html::variants::html(&table, Duration::from_secs(9)).unwrap(),
    )
    .unwrap();
    browser.open(&file);
    // A bar for each kernel that was measured, as long as its figure says.
    let bars = "[...[...document.querySelectorAll('figure')].find(it => it.textContent.includes('on exit')).querySelectorAll('rect')].map(it => Number(it.getAttribute('width')))";
    let bars = browser.eval(bars);
    let bars: Vec<f64> = bars
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_f64().unwrap())
        .collect();
    assert_eq!(bars.len(), 2);
    assert!((bars[1] / bars[0] - 1.5).abs() < 0.01, "{bars:?}");
    let row = "[...document.querySelectorAll('tbody tr')].find(it => it.textContent.includes('on exit')).textContent";
    assert_eq!(
        browser.eval(row),
        "instructions on exit, against the first+0 (100)+50 (150)not measured"
    );
    let notes = browser.eval("document.querySelector('pre').textContent");
    assert_eq!(notes, "A: did not survive x (hang)\nB: does not compile");
    // Nobody measured this one: it has no plot.
    let plots = browser
        .eval("[...document.querySelectorAll('figcaption')].map(it => it.textContent).join()");
    assert!(!plots.as_str().unwrap().contains("on entry"), "{plots}");
    quiet(&browser);
}
