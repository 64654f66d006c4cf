//! Made-up rows.

use unwindlab_guest_kernel::build::generate::{GeneratedMutant, ObjectCode, Operator};

use super::{Kill, MutationFate, MutationRow, Survival};

/// A mutant of this line of `kernel/unwind/deferred.c`.
pub fn row(line: usize, fate: MutationFate) -> MutationRow {
    let object = match &fate {
        MutationFate::DoesNotCompile => ObjectCode::None,
        MutationFate::Equivalent => ObjectCode::Same,
        MutationFate::Twin(other) => ObjectCode::Twin(other.clone()),
        _ => ObjectCode::New,
    };
    let diff = format!(
        "--- a/kernel/unwind/deferred.c\n+++ b/kernel/unwind/deferred.c\n\
         @@ -{line} +{line} @@\n-\treturn {line};\n+\treturn 0;\n"
    );
    MutationRow {
        mutant: GeneratedMutant {
            name: format!("deferred.c:{line}:change-constant"),
            file: "kernel/unwind/deferred.c".to_owned(),
            function: if line < 20 { "z_first" } else { "a_second" }.to_owned(),
            line,
            operator: Operator::ChangeConstant,
            diff,
            object,
            choice: None,
            place: None,
            difference: None,
        },
        fate,
        argued: None,
        seconds: 4.1,
    }
}

/// The same mutant, with an argument.
pub fn argued(row: MutationRow, reason: &str) -> MutationRow {
    MutationRow {
        argued: Some(reason.to_owned()),
        ..row
    }
}

/// Killed by the third test.
pub fn killed(by: &[&str]) -> MutationFate {
    MutationFate::Killed(Kill {
        by: by.iter().map(ToString::to_string).collect(),
        test: "nmi-in-syscall".to_owned(),
        tests: 3,
    })
}

/// Not killed by so many tests.
pub fn survived(tests: usize) -> MutationFate {
    MutationFate::Survived(Survival {
        tests,
        left: 0,
        same: false,
        nearest: Some("nmi-in-idle".to_owned()),
        excused: Vec::new(),
        unsteady: Vec::new(),
    })
}

/// Twelve mutants of three functions in two files; all that can become of one.
pub fn rows() -> Vec<MutationRow> {
    let doubtful = MutationFate::Survived(Survival {
        tests: 61,
        left: 4,
        same: false,
        nearest: None,
        excused: vec!["F001".to_owned(), "F004".to_owned()],
        unsteady: vec!["nmi-in-exit-mm".to_owned()],
    });
    let mut rows = vec![
        row(10, killed(&["M1", "W0"])),
        row(10, killed(&["guest-panic"])),
        row(11, survived(61)),
        row(12, MutationFate::DoesNotCompile),
        row(20, MutationFate::Equivalent),
        row(
            21,
            MutationFate::Twin("deferred.c:10:change-constant".to_owned()),
        ),
        row(22, MutationFate::NotCovered),
        argued(row(23, survived(61)), "the value is overwritten"),
        argued(
            row(24, MutationFate::NotCovered),
            "only 32-bit kernels go here",
        ),
        row(25, MutationFate::Untested("the build failed".to_owned())),
        row(40, killed(&["M1"])),
        row(41, doubtful),
    ];
    for row in rows.iter_mut().rev().take(2) {
        let mutant = &mut row.mutant;
        mutant.file = "kernel/unwind/user.c".to_owned();
        mutant.function = "walk".to_owned();
        mutant.operator = Operator::DeleteStatement;
        mutant.name = format!("user.c:{}:delete-statement", mutant.line);
        mutant.diff = "--- a/x\n+++ b/x\n@@ -1,4 +1,4 @@\n {\n-\t\tget(a,\n-\t\t    \x1b[31mb);\n+\t\t;\n+\n }\n".to_owned();
    }
    rows
}
