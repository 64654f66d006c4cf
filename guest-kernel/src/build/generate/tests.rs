use super::*;

/// The mutants of a text, as `OPERATOR: the changed lines`.
fn mutants(text: &str) -> Vec<String> {
    let file = Changed {
        file: "kernel/unwind/user.c",
        source: Source::parse(text.to_owned()).unwrap(),
    };
    let changed = |change: &Change| {
        let after = change.apply(text);
        assert_eq!(after.lines().count(), text.lines().count(), "{after}");
        let differ = after.lines().zip(text.lines()).filter(|(a, b)| a != b);
        let lines: Vec<&str> = differ.map(|(after, _)| after.trim()).collect();
        format!("{}: {}", change.operator, lines.join(" "))
    };
    let changes = changes_of(&file);
    changes.iter().map(|(_, change)| changed(change)).collect()
}

/// The mutants of statements in a function.
fn of(statements: &str) -> Vec<String> {
    mutants(&format!("int f(void)\n{{\n{statements}\n}}\n"))
}

#[test]
fn statements_go_and_change_places() {
    assert_eq!(
        of("a();\nb = c;"),
        [
            "delete-statement: ;",
            "swap-statements: b = c; a();",
            "delete-statement: ;",
        ]
    );
    // A comment between them stays where it is.
    assert_eq!(
        of("a();\n/* why */\nb();"),
        [
            "delete-statement: ;",
            "swap-statements: b(); a();",
            "delete-statement: ;",
        ]
    );
    assert_eq!(
        of("mutex_lock(&m);\nreturn;\nmutex_unlock(&m);")
            .iter()
            .filter(|it| it.starts_with("drop-lock"))
            .collect::<Vec<_>>(),
        ["drop-lock: ; ;"]
    );
}

#[test]
fn conditions_are_fixed_negated_and_halved() {
    assert_eq!(
        of("if (a && b)\nreturn;"),
        [
            "negate-condition: if (!(a && b))",
            "fix-condition: if (1)",
            "fix-condition: if (0)",
            "drop-condition: if (a)",
            "drop-condition: if (b)",
            "change-operator: if (a || b)",
            "delete-statement: ;",
        ]
    );
}

#[test]
fn values_change() {
    assert_eq!(
        of("x |= ~UNWIND_ID;"),
        [
            "delete-statement: ;",
            "change-operator: x &= ~UNWIND_ID;",
            "change-operator: x |= UNWIND_ID;",
            "change-flag: x |= ~UNWIND_PENDING;",
            "change-flag: x |= ~UNWIND_USED;",
        ]
    );
    assert_eq!(
        of("return x + 2;")
            .iter()
            .filter(|it| it.starts_with("change-"))
            .collect::<Vec<_>>(),
        [
            "change-return: return 0;",
            "change-return: return 1;",
            "change-return: return -1;",
            "change-operator: return x - 2;",
            "change-constant: return x + 3;",
            "change-constant: return x + 1;",
            "change-constant: return x + 0;",
            "change-constant: return x + -1;",
        ]
    );
}

#[test]
fn atomic_operations_become_plain_ones() {
    let weak = |text: &str, operator: &str| {
        let mut found = of(text);
        found.retain(|it| it.starts_with(operator));
        found
    };
    assert_eq!(
        weak("atomic_long_fetch_or(a | b, &m);", "weaken-atomic"),
        [
            "weaken-atomic: ({ long was = atomic_long_read(&m); atomic_long_set(&m, was | (a | b)); was; });"
        ]
    );
    assert_eq!(
        weak("while (!try_cmpxchg(p, &old, new));", "weaken-atomic"),
        ["weaken-atomic: while (!({ WRITE_ONCE(*(p), new); true; }));"]
    );
    assert_eq!(
        weak("WRITE_ONCE(a->b,\n c);", "drop-once"),
        ["drop-once: ((a->b) = (c)) ;"]
    );
}

#[test]
fn what_the_grammar_does_not_understand_stays() {
    let found = of("for_each_thing(a, b) {\nc();\n}");
    assert_eq!(found, ["delete-statement: ;"], "c(), not the loop's head");
}

#[test]
fn macros_are_changed_in_their_lines() {
    let text = "#define FRAME(ws)\t\\\n\t.off = 2*(ws),\t\\\n\t.fp = true,\n\
                #define each(s)\t\\\n\tfor (start(s); !(s)->done; next(s))\n";
    let found = mutants(text);
    for wanted in [
        "change-constant: .off = 3*(ws),\t\\",
        "change-flag: .fp = false,",
        "change-operator: for (start(s); (s)->done; next(s))",
    ] {
        assert!(
            found.iter().any(|it| it == wanted),
            "{wanted} in {found:#?}"
        );
    }
}

#[test]
fn a_mutant_is_a_patch_with_a_name_of_its_own() {
    let file = Changed {
        file: "kernel/unwind/user.c",
        source: Source::parse("int f(void)\n{\n\treturn a < 2;\n}\n".to_owned()).unwrap(),
    };
    let files = [file];
    let mutants: Vec<GeneratedMutant> = all(&files).into_iter().map(|it| it.0).collect();
    let names: Vec<&str> = mutants.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names[..2],
        ["user.c:3:change-return", "user.c:3:change-return.2"]
    );
    assert_eq!(
        mutants[0].diff,
        "--- a/kernel/unwind/user.c\n+++ b/kernel/unwind/user.c\n@@ -1,4 +1,4 @@\n int f(void)\n {\n\
         -\treturn a < 2;\n+\treturn 0;\n }\n"
    );
    assert_eq!(mutants[0].function, "f");
}

#[test]
fn mutants_are_told_apart_by_their_objects() {
    let file = Changed {
        file: "kernel/unwind/user.c",
        source: Source::parse("int f(void)\n{\n\ta();\n\tb();\n}\n".to_owned()).unwrap(),
    };
    let files = [file];
    let mut mutants: Vec<GeneratedMutant> = all(&files).into_iter().map(|it| it.0).collect();
    mutants.extend_from_within(..2);
    mutants.truncate(5);
    let of = |hash: &str| survey::Compilation {
        changed: (!hash.is_empty()).then(|| hash.to_owned()),
        unchanged: Some("old".to_owned()),
    };
    judge(
        &mut mutants,
        ["one", "", "old", "one", "two"].map(of).into(),
    );
    let objects: Vec<&ObjectCode> = mutants.iter().map(|it| &it.object).collect();
    let twin = ObjectCode::Twin(mutants[0].name.clone());
    let expected = [
        &ObjectCode::New,
        &ObjectCode::None,
        &ObjectCode::Same,
        &twin,
        &ObjectCode::New,
    ];
    assert_eq!(objects, expected);
}

/// The functions of a program that is changed, and the calls that show what it does.
const PROGRAM: &str = "static int twice(int a)\n{\n\tint b = a * 2;\n\tb += 1;\n\tb -= 1;\n\treturn b;\n}\n\
    static int first(int a, int b)\n{\n\treturn a;\n}\n\
    int f(int a, int b)\n{\n\tint i, sum = 3;\n\n\tif (b > 90)\n\t\treturn 1;\n\tif (a < b && b > 2)\n\t\tsum = twice(a);\n\telse if (a == b)\n\t\treturn 7;\n\
    \tfor (i = 0; i < b; i++) {\n\t\tif (i == 3)\n\t\t\tcontinue;\n\t\tif (i == 5)\n\t\t\tbreak;\n\t\tsum += i;\n\t}\n\
    \tswitch (a + 1) {\n\tcase 2:\n\t\tsum -= 5;\n\t\tbreak;\n\tcase 3:\n\t\tgoto out;\n\tdefault:\n\t\tsum++;\n\t}\n\
    \tsum = sum > 9 ? 1 : sum;\nout:\n\tsum += first(2, a);\n\treturn sum;\n}\n";
const CALLS: &str = "#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **v) {\n\
    CHOOSE\n for (int a = -1; a < 5; a++) for (int b = -1; b < 7; b++) printf(\"%d \", f(a, b));\n END\n return 0; }\n";

/// What a program prints; nothing where it does not compile.
fn printed(folder: &std::path::Path, text: &str, argument: &str) -> Option<Vec<u8>> {
    run(folder, text, argument).map(|it| it.stdout)
}

/// Runs a program that ends by itself or after two seconds; nothing where it does not compile.
fn run(folder: &std::path::Path, text: &str, argument: &str) -> Option<std::process::Output> {
    use std::process::Command;
    let source = folder.join("program.c");
    let program = folder.join("program");
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("gcc")
        .args(["-w", "-O1", "-o"])
        .args([&program, &source])
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    let run = || {
        let mut timeout = Command::new("timeout");
        timeout
            .arg("2")
            .arg(&program)
            .arg(argument)
            .output()
            .unwrap()
    };
    compiled.success().then(run)
}

#[test]
fn a_chosen_mutant_does_what_it_does_alone() {
    let file = Changed {
        file: "kernel/unwind/user.c",
        source: Source::parse(PROGRAM.to_owned()).unwrap(),
    };
    let files = [file];
    let all = all(&files);
    let parts: Vec<schema::Part<'_>> = { all.iter().zip(1..) }
        .map(|((_, made), number)| schema::Part {
            definition: made.definition,
            change: &made.change,
            number,
            compares: true,
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let choose = "extern unsigned unwindlab_mutant; unwindlab_mutant = atoi(v[1]);";
    let with_main = |text: &str, choose: &str| {
        format!(
            "{text}{}",
            CALLS.replace("CHOOSE", choose).replace("END", "")
        )
    };
    let whole = |text: &str| with_main(text, choose) + &schema::variables(500);
    let schema = schema::Schema::of(&files[0].source, &parts, 0, &mut |text| {
        Ok(printed(folder.path(), &whole(text), "0").is_some())
    })
    .unwrap();
    assert_eq!(schema.text.lines().count(), PROGRAM.lines().count());
    assert!(schema.chosen.len() > 100, "{:?}", schema.chosen);
    let unchanged = printed(folder.path(), &with_main(PROGRAM, ""), "");
    let same = printed(folder.path(), &whole(&schema.text), "0");
    assert_eq!(same, unchanged);
    let noting = "for (int i = 0; i < 500; i++) fputc(unwindlab_reached[i], stderr);";
    let noted = CALLS.replace("CHOOSE", choose).replace("END", noting);
    let noted = format!("{}{noted}{}", schema.text, schema::variables(500));
    let noted = run(folder.path(), &noted, "0").unwrap().stderr;
    let note = |of: &std::collections::BTreeMap<u32, u32>, number: u32| {
        Some(noted[*of.get(&number)? as usize] == 1)
    };
    let (mut differ, mut same) = (0, 0);
    for ((mutant, made), number) in all.iter().zip(1..) {
        let says_same = note(&schema.differs, number) == Some(false);
        if number % 5 != 0 && !says_same || !schema.chosen.contains(&number) {
            continue;
        }
        let alone = with_main(&made.change.apply(PROGRAM), "");
        let alone = printed(folder.path(), &alone, "");
        let chosen = printed(folder.path(), &whole(&schema.text), &number.to_string());
        assert_eq!(chosen, alone, "{}", mutant.name);
        differ += usize::from(alone != unchanged);
        // What is said to make no difference makes none.
        if says_same {
            assert_eq!(alone, unchanged, "{}", mutant.name);
            same += 1;
        }
    }
    assert!(differ > 15 && same > 2, "{differ} {same}");
}

#[test]
fn what_lasts_beyond_its_statement_is_a_kernel_of_its_own() {
    let text =
        "int f(void)\n{\n\tguard(mutex)(&m);\n\tif (IS_ENABLED(A))\n\t\tg();\n\treturn h;\n}\n";
    let file = Changed {
        file: "kernel/unwind/user.c",
        source: Source::parse(text.to_owned()).unwrap(),
    };
    let definition = file.source.definitions()[0];
    let site = |at: &str| {
        let start = text.find(at).unwrap();
        let site = sites::Site::of(&file.source, definition, &(start..start + at.len()));
        site.map(|it| (it.form, &text[it.range]))
    };
    let guard = (sites::Form::Reached, "guard(mutex)(&m);");
    assert_eq!(site("guard(mutex)(&m);"), Some(guard));
    assert_eq!(site("(IS_ENABLED(A))"), None);
    assert_eq!(site("h"), Some((sites::Form::Statements, "return h;")));
}
