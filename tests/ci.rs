//! `ci/`: the steps of the GitHub Action and of the GitLab job, executed in a root file system of their own.
//!
//! Every script is executed as it stands in the file, by bash as the CI system starts it. Stand-ins: `sudo` executes what it is given, `apt-get` and
//! `udevadm` write down what the scripts ask for, and `cargo install` installs the program that is tested. The steps that use actions of GitHub's
//! own (`uses:`) are looked at and not executed.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::consumers::consume;
use common::{said, scratch};
use serde_json::Value;
use unwindlab_guest_kernel::Cache;

/// Programs in place of those that would change the machine or take long.
const STAND_INS: [(&str, &str); 4] = [
    ("sudo", "exec \"$@\""),
    // The tested program asks the real one for what it is to test, where that was asked long ago.
    (
        "apt-get",
        "case \"$1\" in (update|install) echo \"apt-get $*\" >>/home/runner/asked ;; (*) exec /usr/bin/apt-get \"$@\" ;; esac",
    ),
    ("udevadm", "echo \"udevadm $*\" >>/home/runner/asked"),
    (
        "cargo",
        "[ \"$1 $2 $3\" = 'install --locked --path' ] && grep -q '^name = \"unwindlab\"' \"$4/Cargo.toml\" &&
mkdir -p /home/runner/.cargo/bin && cp /tested /home/runner/.cargo/bin/unwindlab",
    ),
];

fn yaml(path: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key}: {value}"))
}

/// A root file system with the stand-ins, the tested program, and what a checkout of unwindlab has.
struct Root {
    folder: PathBuf,
    cache: PathBuf,
}

impl Root {
    fn new(name: &str) -> Self {
        let folder = scratch(name);
        let at = |path: &str| folder.join(path);
        for path in [
            "stand-ins",
            "home/runner/work",
            "harness/ci/github",
            "etc/udev/rules.d",
        ] {
            fs::create_dir_all(at(path)).unwrap();
        }
        for (program, script) in STAND_INS {
            let path = at("stand-ins").join(program);
            fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_unwindlab"), at("tested")).unwrap();
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        fs::copy(manifest, at("harness/Cargo.toml")).unwrap();
        let cache = Cache::open(None).unwrap().root().to_owned();
        Self { folder, cache }
    }

    /// Executes a script by these words, with nothing else in its environment.
    fn execute(
        &self,
        shell: &[&str],
        script: &str,
        environment: &BTreeMap<String, String>,
    ) -> Output {
        fs::write(self.folder.join("script"), script).unwrap();
        let path =
            "/stand-ins:/home/runner/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
        let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ci/clean-root.sh");
        let output = Command::new(helper)
            .args([&self.folder, &self.cache])
            .args(shell)
            .arg("/script")
            .env_clear()
            .envs([
                ("PATH", path),
                ("HOME", "/home/runner"),
                ("UNWINDLAB_CACHE", "/cache"),
            ])
            .envs(environment)
            .output();
        output.unwrap()
    }

    fn read(&self, path: &str) -> String {
        let file = self.folder.join(path);
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }
}

/// GitHub's own: `shell: bash` of a composite action.
const GITHUB: [&str; 5] = ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail"];
/// GitLab's runner, of a job's lines.
const GITLAB: [&str; 3] = ["/bin/bash", "-eo", "pipefail"];

/// Executes the action with these arguments; the exit code of the first step that failed, and what all printed.
fn act(root: &Root, arguments: &str) -> (Option<i32>, String) {
    let action = yaml("ci/github/action.yml");
    assert_eq!(action["runs"]["using"], "composite");
    let inputs = [
        ("arguments", arguments),
        ("results", text(&action["inputs"]["results"], "default")),
    ];
    let expanded = |value: &str| {
        let mut value = value.to_owned();
        for (input, given) in inputs {
            value = value.replace(&format!("${{{{ inputs.{input} }}}}"), given);
        }
        assert!(!value.contains("${{"), "unknown to this test: {value}");
        value
    };
    let (mut printed, mut code) = (String::new(), Some(0));
    for step in action["runs"]["steps"].as_array().unwrap() {
        if let Some(uses) = step["uses"].as_str() {
            assert!(
                ["actions/cache@v4", "actions/upload-artifact@v4"].contains(&uses),
                "{uses}"
            );
            continue;
        }
        assert_eq!(step["shell"], "bash", "{step}");
        // What is expanded within a script could be a command: it comes by the environment.
        let script = text(step, "run");
        assert!(!script.contains("${{"), "{script}");
        match step["if"].as_str() {
            None | Some("runner.os == 'Linux' && runner.arch == 'X64'") => {}
            Some(other) => panic!("unknown to this test: {other}"),
        }
        let mut environment: BTreeMap<String, String> = [
            ("GITHUB_ACTION_PATH", "/harness/ci/github"),
            ("GITHUB_OUTPUT", "/home/runner/output"),
            ("GITHUB_STEP_SUMMARY", "/home/runner/summary"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            environment.insert(name.clone(), expanded(value.as_str().unwrap()));
        }
        let output = root.execute(
            &GITHUB,
            &format!("cd /home/runner/work\n{script}"),
            &environment,
        );
        printed.push_str(&said(&output));
        code = output.status.code();
        if code != Some(0) {
            break;
        }
    }
    (code, printed)
}

#[test]
fn the_github_action_runs_scenarios() {
    let root = Root::new("ci-github");
    let (code, told) = act(&root, "nmi-in-syscall lab-leaving");
    assert_eq!(code, Some(0), "{told}");
    let rule = "KERNEL==\"kvm\", GROUP=\"kvm\", MODE=\"0666\", OPTIONS+=\"static_node=kvm\"\n";
    assert_eq!(root.read("etc/udev/rules.d/99-kvm4all.rules"), rule);
    let asked = root.read("home/runner/asked");
    for line in [
        "udevadm control --reload-rules\n",
        "apt-get update -q\n",
        " libelf-dev\n",
    ] {
        assert!(asked.contains(line), "{asked}");
    }
    assert!(told.contains("\npass "), "{told}");
    assert_eq!(root.read("home/runner/output"), "exit-code=0\n");
    let summary = root.read("home/runner/summary");
    assert!(summary.starts_with("1 pass, 1 skip in "), "{summary}");
    let results = "home/runner/work/unwindlab-results";
    assert_eq!(
        root.read(&format!("{results}/results.jsonl"))
            .lines()
            .count(),
        2
    );
    assert!(
        root.read(&format!("{results}/results.xml"))
            .contains("<testcase ")
    );
    assert!(
        root.folder
            .join(results)
            .join("guests/nmi-in-syscall/console.log")
            .exists()
    );

    // Arguments are words, and no commands of a shell.
    let (code, told) = act(&root, "$(touch /touched) ; exit 0");
    assert_eq!(code, Some(2), "{told}");
    assert!(!root.folder.join("touched").exists());
    assert!(root.read("home/runner/output").ends_with("exit-code=2\n"));
}

#[test]
fn the_gitlab_job_fails_as_the_run_does() {
    let root = Root::new("ci-gitlab");
    let job = &yaml("ci/gitlab.yml")["unwindlab"];
    for (args, expected) in [("lab-leaving", 125), ("--no-such-option", 2)] {
        let lines = ["before_script", "script"].map(|part| job[part].as_array().unwrap().clone());
        let lines = lines.concat();
        let lines: Vec<&str> = lines.iter().map(|line| line.as_str().unwrap()).collect();
        let project = "/home/runner/work";
        let mut environment = BTreeMap::from([("CI_PROJECT_DIR".to_owned(), project.to_owned())]);
        for (name, value) in job["variables"].as_object().unwrap() {
            let value = match name.as_str() {
                "HARNESS_URL" => "/harness",
                "ARGUMENTS" => args,
                // That of the machine, which is filled.
                "UNWINDLAB_CACHE" => {
                    assert_eq!(value, "$CI_PROJECT_DIR/.unwindlab-cache");
                    assert_eq!(job["cache"]["paths"][0], ".unwindlab-cache");
                    "/cache"
                }
                other => panic!("unknown to this test: {other}"),
            };
            environment.insert(name.clone(), value.to_owned());
        }
        let script = format!(
            "cd {project}\nrm -rf unwindlab-source\n{}\n",
            lines.join("\n")
        );
        let repository = "git -C /harness init -q -b main && git -C /harness add . &&
git -C /harness -c user.name=a -c user.email=a@b commit -q -m all";
        if !root.folder.join("harness/.git").exists() {
            let output = root.execute(&GITLAB, repository, &environment);
            assert!(output.status.success(), "{}", said(&output));
        }
        let output = root.execute(&GITLAB, &script, &environment);
        assert_eq!(output.status.code(), Some(expected), "{}", said(&output));
    }
    assert!(
        root.read("home/runner/asked")
            .contains("apt-get install -q -y")
    );
    let results = text(&job["artifacts"]["reports"], "junit");
    assert!(
        root.read(&format!("home/runner/work/{results}"))
            .contains("<skipped ")
    );
}

/// Executes a script with a stand-in for unwindlab that says what it is asked for.
fn asked(script: &str, environment: &[(&str, &str)]) -> String {
    let folder = scratch("ci-asked");
    let stand_in = folder.join("unwindlab");
    fs::write(&stand_in, "#!/bin/bash\nprintf '[%s]' \"$@\"\n").unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(&folder)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_kubernetes_job_is_one_by_the_schema_of_the_api() {
    let manifest = "ci/kubernetes/sweep.yaml";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest);
    let output = consume("manifest.py", &[&file]);
    let told = said(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("Job unwindlab-sweep"), "{told}");
    // The schema is really asked.
    let text = fs::read_to_string(&file).unwrap();
    let broken = scratch("ci-manifest").join("broken.yaml");
    for (right, wrong) in [
        ("completions: 8", "completions: eight"),
        ("backoffLimitPerIndex", "backoffLimitPerIndices"),
    ] {
        assert!(text.contains(right));
        fs::write(&broken, text.replace(right, wrong)).unwrap();
        let output = consume("manifest.py", &[&broken]);
        assert!(!output.status.success(), "{wrong}: {}", said(&output));
    }

    let documents = text.split("\n---\n").last().unwrap();
    let job: Value = serde_saphyr::from_str(documents).unwrap();
    let spec = &job["spec"];
    let container = &spec["template"]["spec"]["containers"][0];
    let value = |name: &str| {
        let variables = container["env"].as_array().unwrap();
        let variable = variables.iter().find(|it| it["name"] == name).unwrap();
        text_of(variable)
    };
    assert_eq!(value("PARTS"), spec["completions"].to_string());
    let (scenario, options, parts) = (value("SCENARIO"), value("OPTIONS"), value("PARTS"));
    let told = asked(
        container["args"][0].as_str().unwrap(),
        &[
            ("SCENARIO", &scenario),
            ("OPTIONS", &options),
            ("PARTS", &parts),
            ("JOB_COMPLETION_INDEX", "0"),
        ],
    );
    let expected = "[sweep][nmi-in-syscall][--pairs][--shard][1/8][--resume][part-1.json]";
    assert_eq!(told, expected);
}

fn text_of(variable: &Value) -> String {
    text(variable, "value").to_owned()
}

#[test]
fn the_github_matrix_makes_each_part_once() {
    let workflow = yaml("ci/github/sweep.yml");
    let job = &workflow["jobs"]["part"];
    let parts = job["strategy"]["matrix"]["part"].as_array().unwrap();
    let numbers: Vec<u64> = parts.iter().map(|it| it.as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=parts.len() as u64).collect::<Vec<_>>());
    assert_eq!(job["strategy"]["fail-fast"], false);
    let steps = job["steps"].as_array().unwrap();
    let sweep = steps.iter().find(|it| it["name"] == "Sweep").unwrap();
    let environment = &sweep["env"];
    assert_eq!(environment["PART"], "${{ matrix.part }}");
    assert_eq!(environment["PARTS"], "${{ strategy.job-total }}");
    assert_eq!(environment["ARGUMENTS"], "${{ inputs.arguments }}");
    for job in workflow["jobs"].as_object().unwrap().values() {
        for step in job["steps"].as_array().unwrap() {
            assert!(
                step["run"].as_str().is_none_or(|it| !it.contains("${{")),
                "{step}"
            );
        }
    }
    let given = [("ARGUMENTS", "a --pairs"), ("PART", "3"), ("PARTS", "8")];
    let told = asked(text(sweep, "run"), &given);
    let expected = "[sweep][a][--pairs][--shard][3/8][--resume][part-3.json]";
    assert_eq!(told, expected);
}
