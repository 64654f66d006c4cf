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
    let of = |hash: &str| Compilation {
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

#[test]
fn a_probe_stands_before_the_statement() {
    let text = "int f(void)\n{\n\tint a = 1;\n\tif (a < 2)\n\t\treturn a + 3;\n\tswitch (a) {\n\tcase 4:\n\t\tg(5);\n\t}\n}\n";
    let file = Changed {
        file: "kernel/unwind/user.c",
        source: Source::parse(text.to_owned()).unwrap(),
    };
    let definition = file.source.definitions()[0];
    let probed = |at: &str| {
        let change = probe::of(&file.source, definition, text.find(at).unwrap()).unwrap();
        let after = change.apply(text);
        let differ = after.lines().zip(text.lines()).find(|(a, b)| a != b);
        differ.unwrap().0.trim().to_owned()
    };
    assert_eq!(probed("1;"), "__builtin_trap(); int a = 1;");
    assert_eq!(probed("2)"), "__builtin_trap(); if (a < 2)");
    assert_eq!(probed("3;"), "{ __builtin_trap(); return a + 3; }");
    assert_eq!(probed("4:"), "__builtin_trap(); switch (a) {");
    assert_eq!(probed("5)"), "__builtin_trap(); g(5);");
}
