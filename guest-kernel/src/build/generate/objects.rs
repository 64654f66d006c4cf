//! Compiles changed files as the kernel's own build does, and compares the objects with those without the change.
//!
//! The commands are those that kbuild has left beside its objects (`.NAME.o.cmd`, scripts/Kbuild.include). A changed file of
//! C comes in by standard input, a changed header from a folder that is searched first. A `#line` gives both their own name.
//! Debug information is left out, and objtool is not run: it adds what follows from the code.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::super::BuildError;
use super::super::make::{FIXED, KEPT};
use super::super::workspace;
use crate::cache::{At, CacheError, hex};
use crate::child;
use crate::confine::{self, Allowed};
use crate::input;
use crate::progress::Progress;

/// Largest file that a build leaves and that is read.
const MOST: u64 = input::RECORDED;

/// What the compiler writes: in the folder of a text, the folder that it may write to, and its object there.
const MADE: &str = "made";
const OUTPUT: &str = "output.o";

/// An object that is compiled from a file, or from one that includes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    /// The compiler and its options, without names of files.
    command: String,
    /// The source, from the folder of the objects.
    source: String,
}

/// What a changed file becomes: a hash of all its objects, or nothing where one of them does not compile.
pub(super) type Compiled = Option<String>;

/// The folders of a build that is complete.
#[derive(Debug, Clone)]
pub(super) struct Built<'a> {
    pub src: &'a Path,
    pub obj: &'a Path,
}

/// How to compile one file of the kernel.
#[derive(Debug, Clone)]
pub(super) struct Objects<'a> {
    built: Built<'a>,
    /// From the root of the source.
    file: &'a str,
    objects: Vec<Object>,
}

impl<'a> Objects<'a> {
    /// The objects that a file is compiled into; those that this build has.
    pub fn of(built: Built<'a>, file: &'a str) -> Result<Self, BuildError> {
        let source = format!("../{file}");
        let mut objects = Vec::new();
        match file.strip_suffix(".c") {
            Some(stem) => {
                let (folder, name) = stem.rsplit_once('/').unwrap_or((".", stem));
                let path = Path::new(folder).join(format!(".{name}.o.cmd"));
                let text = input::below(built.obj, &path, MOST).at(&built.obj.join(&path))?;
                objects.extend(Object::parse(&String::from_utf8_lossy(&text)));
            }
            None => commands(built.obj, &mut |text| {
                let includes = text
                    .lines()
                    .any(|it| it.trim_end_matches(" \\").trim() == source);
                objects.extend(Object::parse(text).filter(|_| includes));
            })?,
        }
        objects.sort_by(|a, b| a.source.cmp(&b.source));
        Ok(Self {
            built,
            file,
            objects,
        })
    }

    /// Keeps those objects that become others, or none, with this text in the place of the file.
    pub fn keep_those_that_use(
        &mut self,
        probe: &str,
        text: &str,
        number: usize,
        progress: &dyn Progress,
    ) -> Result<(), BuildError> {
        let mut kept = Vec::new();
        for object in std::mem::take(&mut self.objects) {
            let alone = Self {
                objects: vec![object],
                ..self.clone()
            };
            if alone.compile(probe, number, progress)? != alone.compile(text, number, progress)? {
                kept.extend(alone.objects);
            }
        }
        self.objects = kept;
        Ok(())
    }

    /// Compiles all with this text in the place of the file. `number` is that of the thread.
    ///
    /// The text lies where no command of the build can write: it might put a link to a file of the user's there.
    pub fn compile(
        &self,
        text: &str,
        number: usize,
        progress: &dyn Progress,
    ) -> Result<Compiled, BuildError> {
        let name = format!("{}{number}", workspace::GENERATED);
        let folder = self.built.src.with_file_name(name);
        // A killed process may have left it.
        if folder.exists() {
            fs::remove_dir_all(&folder).at(&folder)?;
        }
        let made = folder.join(MADE);
        fs::create_dir_all(&made).at(&made)?;
        let compiled = self.compile_in(&folder, text, progress);
        fs::remove_dir_all(&folder).at(&folder)?;
        compiled
    }

    fn compile_in(
        &self,
        folder: &Path,
        text: &str,
        progress: &dyn Progress,
    ) -> Result<Compiled, BuildError> {
        let named = format!("#line 1 \"../{}\"\n{text}", self.file);
        let is_header = self.file.ends_with(".h");
        let input = match (is_header, self.file.split_once("include/")) {
            (true, Some((_, below))) => folder.join("include").join(below),
            _ => folder.join("input.c"),
        };
        if let Some(parent) = input.parent() {
            fs::create_dir_all(parent).at(parent)?;
        }
        fs::write(&input, named).at(&input)?;
        let mut hash = Sha256::new();
        let made = folder.join(MADE);
        for object in &self.objects {
            let output = made.join(OUTPUT);
            let line = match is_header {
                true => object.with_header(&folder.join("include"), &output),
                false => object.with_input(&output),
            };
            let from = (!is_header).then_some(input.as_path());
            if !self.run(&line, from, folder, progress)? {
                return Ok(None);
            }
            let object = input::below(&made, OUTPUT, MOST).at(&output)?;
            hash.update(Sha256::digest(object));
            fs::remove_file(&output).at(&output)?;
        }
        Ok(Some(hex(&hash.finalize())))
    }

    /// Runs a command of the build, confined as the build is, with the text in this folder; whether it succeeds.
    fn run(
        &self,
        line: &str,
        input: Option<&Path>,
        folder: &Path,
        progress: &dyn Progress,
    ) -> Result<bool, BuildError> {
        let mut command = Command::new("sh");
        let stdin = match input {
            Some(path) => File::open(path).at(path)?.into(),
            None => Stdio::null(),
        };
        command
            .args(["-c", line])
            .current_dir(self.built.obj)
            .env_clear()
            .envs(
                KEPT.iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .envs(FIXED.iter().copied())
            .env("TMPDIR", self.built.obj.join("temporary"))
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let allowed = Allowed::system()
            .and_read(self.built.src)
            .and_write(self.built.obj)
            .and_read(folder)
            .and_write(&folder.join(MADE));
        confine::confine(&mut command, &allowed, "a kernel's build")?;
        child::end_with_us(&mut command);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::Interrupted => BuildError::Stopped,
            _ => CacheError::new(Path::new("sh"), error).into(),
        };
        let mut child = command.spawn().map_err(failed)?;
        Ok(child::wait(&mut child, progress).map_err(failed)?.success())
    }
}

impl Object {
    /// Reads what kbuild has noted of an object of C.
    fn parse(text: &str) -> Option<Self> {
        let (_, command) = text.lines().next()?.split_once(" := ")?;
        let compiler = command.split(" ; ").next()?.trim();
        let (options, files) = compiler.split_once(" -c -o ")?;
        let source = files.split_whitespace().nth(1)?;
        let is_written = |it: &&str| !it.starts_with("-Wp,-MMD,") && !it.starts_with("-Wp,-MD,");
        let options: Vec<&str> = options.split(' ').filter(is_written).collect();
        source.ends_with(".c").then(|| Self {
            command: options.join(" "),
            source: source.to_owned(),
        })
    }

    /// Compiles standard input.
    fn with_input(&self, output: &Path) -> String {
        let folder = self.source.rsplit_once('/').map_or(".", |it| it.0);
        let (command, output) = (&self.command, output.display());
        format!("{command} -g0 -iquote {folder} -c -o '{output}' -x c -")
    }

    /// Compiles the source with another header, which is in this folder.
    fn with_header(&self, folder: &Path, output: &Path) -> String {
        let (compiler, options) = self.command.split_once(' ').unwrap_or((&self.command, ""));
        let (folder, output) = (folder.display(), output.display());
        format!(
            "{compiler} -I'{folder}' {options} -g0 -c -o '{output}' {}",
            self.source
        )
    }
}

/// Calls `look` with what kbuild has noted of each object below a folder.
fn commands(folder: &Path, look: &mut dyn FnMut(&str)) -> Result<(), BuildError> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).at(folder)? {
        paths.push(entry.at(folder)?.path());
    }
    for path in paths {
        let kind = fs::symlink_metadata(&path).at(&path)?;
        if kind.is_dir() {
            commands(&path, look)?;
        } else if kind.is_file() && path.to_string_lossy().ends_with(".o.cmd") {
            look(&String::from_utf8_lossy(
                &input::read(&path, MOST).at(&path)?,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::progress::Silent;

    #[test]
    fn the_command_of_an_object_is_the_compilers() {
        let text = "savedcmd_kernel/fork.o := gcc -Wp,-MMD,kernel/.fork.o.d -O2 -DNAME='\"a b\"' -c -o \
                    kernel/fork.o ../kernel/fork.c   ; ./tools/objtool/objtool kernel/fork.o\n\
                    source_kernel/fork.o := ../kernel/fork.c\n";
        let object = Object::parse(text).unwrap();
        assert_eq!(object.command, "gcc -O2 -DNAME='\"a b\"'");
        assert_eq!(
            object.with_input(Path::new("/o")),
            "gcc -O2 -DNAME='\"a b\"' -g0 -iquote ../kernel -c -o '/o' -x c -"
        );
        assert_eq!(
            object.with_header(Path::new("/i"), Path::new("/o")),
            "gcc -I'/i' -O2 -DNAME='\"a b\"' -g0 -c -o '/o' ../kernel/fork.c"
        );
        let assembler = "savedcmd_a.o := gcc -D__ASSEMBLY__ -c -o a.o ../a.S\n";
        assert_eq!(Object::parse(assembler), None);
        assert_eq!(Object::parse("savedcmd_a.a := ar a.a\n"), None);
    }

    /// The objects of a text, by this command, which leaves links wherever it can.
    fn compiled(workspace: &Path, command: &str) -> Result<Compiled, BuildError> {
        let [src, obj] = ["src", "src/obj"].map(|it| workspace.join(it));
        let object = |source: &str| Object {
            command: command.to_owned(),
            source: source.to_owned(),
        };
        let objects = Objects {
            built: Built {
                src: &src,
                obj: &obj,
            },
            file: "kernel/fork.c",
            objects: ["../a.c", "../b.c"].map(object).to_vec(),
        };
        objects.compile("int text;\n", 0, &Silent)
    }

    #[test]
    fn a_build_that_leaves_links_has_no_file_of_the_users() {
        let folder = tempfile::tempdir().unwrap();
        let private = folder.path().join("private.c");
        fs::write(&private, "int private;\n").unwrap();
        let workspace = folder.path().join("workspace");
        let left = workspace.join("src/obj/temporary/generated-0");
        fs::create_dir_all(&left).unwrap();
        let expected = compiled(&workspace, "gcc").unwrap();
        assert!(expected.is_some());
        fs::create_dir_all(&left).unwrap();
        symlink(&private, left.join("input.c")).unwrap();
        let links = ["generated-0", "src/obj/temporary/generated-0"].map(|place| {
            let place = workspace.join(place).join("input.c");
            format!("ln -sf '{}' '{}'; ", private.display(), place.display())
        });
        let command = format!("{}gcc", links.concat());
        assert_eq!(compiled(&workspace, &command).unwrap(), expected);
        assert_eq!(fs::read_to_string(&private).unwrap(), "int private;\n");
        let command = format!("ln -sf '{}' made/output.o; true", private.display());
        let command = format!("cd '{}/generated-0'; {command}", workspace.display());
        let error = compiled(&workspace, &command).unwrap_err().to_string();
        assert!(error.contains("a symbolic link leads to it"), "{error}");
    }
}
