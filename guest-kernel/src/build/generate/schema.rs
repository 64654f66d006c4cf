//! One kernel that has many mutants: which of them it is, a variable says when it runs.
//!
//! As long as it is none, it also notes which mutants would have had another value where they stand: no test needs to be made of the others.
//!
//! That saves a build and a boot for each ("mutant schemata": Untch, Offutt, Harrold, ISSTA 1993,
//! [doi:10.1145/154183.154265](https://doi.org/10.1145/154183.154265)). Each place at which something is changed also notes that it was executed.
//!
//! ```text
//! a = b + 1;  ──>  { unwindlab_reached[4] = 1; if (unwindlab_mutant == 7) { a = b - 1; } else { a = b + 1; } }
//! if (a < b)  ──>  if ((({ unwindlab_reached[5] = 1; }), unwindlab_mutant == 8 ? !!(a <= b) : !!(a < b)))
//! ```
//!
//! What stands for several lines is written in one, so that the numbers of the lines stay.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::BuildError;
use super::change::{Change, applied};
use super::differs;
use super::sites::{Form, Site};
use super::source::{Definition, Source};

/// The number of the mutant that the kernel is; 0 for none. An `unsigned int`, and a parameter of the kernel, which says it from the boot on.
pub const MUTANT: &str = "unwindlab_mutant";
/// What was executed, a byte each, 0 or 1: the places at which mutants are chosen and, of a kernel that is no mutant, the mutants that
/// would have made a difference.
pub const REACHED: &str = "unwindlab_reached";

/// The changes of a mutant, as the schema needs them.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub definition: Definition<'a>,
    pub change: &'a Change,
    /// From 1.
    pub number: u32,
    /// Whether it can be noted that it makes a difference.
    pub compares: bool,
}

/// A file with all that can be chosen in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Schema {
    pub text: String,
    /// The numbers of the mutants that can be chosen.
    pub chosen: BTreeSet<u32>,
    /// By number of a mutant: the place at which it is noted that it is executed.
    pub places: BTreeMap<u32, u32>,
    /// By number of a mutant: where it is noted that it makes a difference, if that can be.
    pub differs: BTreeMap<u32, u32>,
    /// The first place that is not in this file or one before it.
    pub end: u32,
}

/// Of a place: the text of each mutant that differs there.
struct Choice {
    site: Site,
    /// By number.
    edits: BTreeMap<u32, Vec<(Range<usize>, String)>>,
    differences: Vec<Difference>,
}

/// What is true where a mutant makes a difference.
struct Difference {
    /// Where it is computed.
    at: usize,
    number: u32,
    condition: String,
}

impl Schema {
    /// Puts as many mutants of a file into one text as the compiler takes together. `first` is the number of its first place.
    pub fn of(
        source: &Source,
        parts: &[Part<'_>],
        first: u32,
        compiles: &mut dyn FnMut(&str) -> Result<bool, BuildError>,
    ) -> Result<Self, BuildError> {
        let mut taken = Vec::new();
        grow(source, &mut taken, parts, first, compiles)?;
        Ok(Self::written(source, &taken, first))
    }

    /// The text with these mutants.
    fn written(source: &Source, parts: &[Part<'_>], first: u32) -> Self {
        let mut schema = Self {
            end: first,
            ..Self::default()
        };
        let declared = format!("extern unsigned int {MUTANT}; extern unsigned char {REACHED}[]; ");
        schema.text.push_str(&declared);
        let mut done = 0;
        let mut edits: BTreeMap<u32, usize> = BTreeMap::new();
        for choice in choices(source, parts) {
            let Range { start, end } = choice.site.range.clone();
            let before = source.text.get(done..start).unwrap_or_default();
            schema.text.push_str(before);
            let place = schema.end;
            schema.end += 1;
            for difference in &choice.differences {
                schema.differs.insert(difference.number, schema.end);
                schema.end += 1;
            }
            let text = choice.text(source, place, &schema.differs);
            schema.text.push_str(&text);
            done = end;
            for (number, here) in &choice.edits {
                schema.places.entry(*number).or_insert(place);
                if choice.site.form != Form::Reached {
                    *edits.entry(*number).or_default() += here.len();
                }
            }
        }
        let behind = source.text.get(done..).unwrap_or_default();
        schema.text.push_str(behind);
        // A change that consists of several can be chosen where all of it can.
        let is_whole =
            |part: &&Part<'_>| edits.get(&part.number) == Some(&part.change.edits().len());
        let whole = parts.iter().filter(is_whole);
        schema.chosen = whole.map(|it| it.number).collect();
        schema
    }
}

impl Part<'_> {
    /// What is true where it makes a difference, if it consists of this edit alone and that can be computed.
    fn difference(
        &self,
        source: &Source,
        site: &Site,
        edit: &(Range<usize>, String),
    ) -> Option<Difference> {
        let can = self.compares
            && self.change.edits().len() == 1
            && !matches!(site.form, Form::Reached | Form::Effect);
        let (body, operator) = (self.definition.body, self.change.operator);
        let condition =
            can.then(|| differs::condition(source, body, &site.range, operator, edit))??;
        Some(Difference {
            at: site.range.start,
            number: self.number,
            condition,
        })
    }

    fn sites(&self, source: &Source) -> Vec<Option<Site>> {
        let edits = self.change.edits().iter();
        edits
            .map(|(range, _)| Site::of(source, self.definition, range))
            .collect()
    }
}

/// What chooses a mutant for the boot too, for the end of the file with the variables: the parameter `unwindlab_mutant=N`.
pub(super) fn parameter() -> String {
    format!(
        "#include <linux/init.h>\n#include <linux/kstrtox.h>\n\
         static int __init {MUTANT}_parameter(char *text)\n{{\n\treturn kstrtouint(text, 0, &{MUTANT});\n}}\n\
         early_param(\"{MUTANT}\", {MUTANT}_parameter);\n"
    )
}

/// The definitions of the variables, for the end of one file.
pub(super) fn variables(places: u32) -> String {
    format!(
        "\nunsigned int {MUTANT};\nunsigned char {REACHED}[{}];\n",
        places.max(1)
    )
}

/// Adds those of `more` with which the text still compiles.
fn grow<'a>(
    source: &Source,
    taken: &mut Vec<Part<'a>>,
    more: &[Part<'a>],
    first: u32,
    compiles: &mut dyn FnMut(&str) -> Result<bool, BuildError>,
) -> Result<(), BuildError> {
    if more.is_empty() {
        return Ok(());
    }
    let with: Vec<Part<'_>> = taken.iter().chain(more).copied().collect();
    if compiles(&Schema::written(source, &with, first).text)? {
        taken.extend(more);
        return Ok(());
    }
    if let [one] = more
        && one.compares
    {
        let without = Part {
            compares: false,
            ..*one
        };
        grow(source, taken, &[without], first, compiles)?;
    }
    if more.len() > 1 {
        let (one, other) = more.split_at(more.len() / 2);
        grow(source, taken, one, first, compiles)?;
        grow(source, taken, other, first, compiles)?;
    }
    Ok(())
}

/// All places at which these mutants are chosen, in the order of the text; none overlaps another.
fn choices(source: &Source, parts: &[Part<'_>]) -> Vec<Choice> {
    let mut found: Vec<Choice> = Vec::new();
    for part in parts {
        let sites = part.sites(source);
        for (site, edit) in sites.into_iter().zip(part.change.edits()) {
            let Some(site) = site else { continue };
            let difference = part.difference(source, &site, edit);
            found.push(Choice {
                site,
                differences: difference.into_iter().collect(),
                edits: BTreeMap::from([(part.number, vec![edit.clone()])]),
            });
        }
    }
    // A wider one comes before those that are in it.
    found.sort_by_key(|it| (it.site.range.start, std::cmp::Reverse(it.site.range.end)));
    let mut merged: Vec<Choice> = Vec::new();
    for choice in found {
        let overlaps = |last: &Choice| choice.site.range.start < last.site.range.end;
        let Some(last) = merged.last_mut().filter(|it| overlaps(it)) else {
            merged.push(choice);
            continue;
        };
        // What cannot stand together has no place of its own.
        if let Some(both) = last.site.with(&choice.site) {
            last.site = both;
            last.differences.extend(choice.differences);
            for (number, edits) in choice.edits {
                last.edits.entry(number).or_default().extend(edits);
            }
        }
    }
    merged
}

impl Choice {
    /// What stands at the place instead.
    fn text(&self, source: &Source, place: u32, differs: &BTreeMap<u32, u32>) -> String {
        let Range { start, end } = self.site.range.clone();
        let old = source.text.get(start..end).unwrap_or_default();
        let reached = format!("{REACHED}[{place}] = 1;");
        if self.site.form == Form::Reached {
            return format!("{reached} {old}");
        }
        if self.site.form == Form::Statements {
            let mutants = self.mutants(source, |number, new| {
                format!("if ({MUTANT} == {number}) {{ {new} }} else ")
            });
            let starts: BTreeSet<usize> = self.differences.iter().map(|it| it.at).collect();
            let mut noted = String::new();
            let mut done = start;
            // Each before the statement that it is about.
            for at in starts {
                noted.push_str(source.text.get(done..at).unwrap_or_default());
                noted.push_str(&self.notes(differs, |it| it.at == at));
                done = at;
            }
            noted.push_str(source.text.get(done..end).unwrap_or_default());
            return format!("{{ {reached} {mutants}{{ {noted} }} }}");
        }
        let as_one = match self.site.form {
            Form::Condition => "!!",
            Form::Effect => "(void)",
            _ => "",
        };
        let mutants = self.mutants(source, |number, new| {
            format!("{MUTANT} == {number} ? {as_one}({new}) : ")
        });
        let notes = self.notes(differs, |_| true);
        format!("(({{ {reached} {notes} }}), {mutants}{as_one}({old}))")
    }

    /// Statements that note which of these mutants make a difference.
    fn notes(&self, differs: &BTreeMap<u32, u32>, is: impl Fn(&Difference) -> bool) -> String {
        let of = self.differences.iter().filter(|it| is(it));
        let each = of.filter_map(|it| {
            let place = differs.get(&it.number)?;
            Some(format!("if ({}) {REACHED}[{place}] = 1; ", it.condition))
        });
        let each: String = each.collect();
        match each.is_empty() {
            true => each,
            false => format!("if (!{MUTANT}) {{ {each}}} "),
        }
    }

    fn mutants(&self, source: &Source, one: impl Fn(u32, &str) -> String) -> String {
        let each = self.edits.iter().map(|(number, edits)| {
            let new = applied(&source.text, self.site.range.clone(), edits);
            one(*number, &new.replace('\n', " "))
        });
        each.collect()
    }
}
