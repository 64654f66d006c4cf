//! Configuration fragments: lines of a kernel's `.config`, as `CONFIG_X=y` or
//! `# CONFIG_X is not set`.

use std::collections::BTreeMap;

use super::BuildError;

/// Lines of configuration with a name for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// `debug`, or the user's file.
    pub name: String,
    /// The lines.
    pub content: String,
}

/// The fragment under all others.
pub const BASE: &str = "base";
/// Of these, options that a kernel version lacks are no error: they serve all versions.
const FOR_ALL_VERSIONS: &[&str] = &[BASE];

/// The text for `KCONFIG_ALLCONFIG`: each option once, with its last value.
pub(super) fn merged(fragments: &[Fragment]) -> String {
    let mut values = BTreeMap::new();
    for fragment in fragments {
        values.extend(settings(&fragment.content));
    }
    values
        .iter()
        .map(|(option, value)| match *value {
            "n" => format!("# {option} is not set\n"),
            value => format!("{option}={value}\n"),
        })
        .collect()
}

/// Checks that `config`, a finished `.config`, has what each fragment asks for, unless a later one
/// asks for something else.
pub(super) fn check(fragments: &[Fragment], config: &str) -> Result<(), BuildError> {
    let got: BTreeMap<&str, &str> = settings(config).collect();
    for (position, fragment) in fragments.iter().enumerate() {
        if FOR_ALL_VERSIONS.contains(&fragment.name.as_str()) {
            continue;
        }
        let later: BTreeMap<&str, &str> = fragments
            .iter()
            .skip(position + 1)
            .flat_map(|later| settings(&later.content))
            .collect();
        let unmet: Vec<String> = settings(&fragment.content)
            .filter(|(option, _)| !later.contains_key(option))
            .filter_map(|(option, asked)| {
                let is = got.get(option).copied().unwrap_or("n");
                (is != asked).then(|| format!("{option}={asked} (is {is})"))
            })
            .collect();
        if !unmet.is_empty() {
            return Err(BuildError::Config {
                fragment: fragment.name.clone(),
                options: unmet.join(", "),
            });
        }
    }
    Ok(())
}

/// Option and value of each line that has them; `n` if it is not set.
fn settings(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let off = line
            .strip_prefix("# ")
            .and_then(|rest| rest.strip_suffix(" is not set"));
        match off {
            Some(option) => Some((option, "n")),
            None => line.split_once('='),
        }
        .filter(|(option, _)| option.starts_with("CONFIG_"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(name: &str, content: &str) -> Fragment {
        Fragment {
            name: name.to_owned(),
            content: content.to_owned(),
        }
    }

    #[test]
    fn later_fragments_win() {
        let fragments = [
            fragment(
                "a",
                "CONFIG_A=y\n# CONFIG_B is not set\n# prose, CONFIG_X\n",
            ),
            fragment("b", "CONFIG_B=\"text\"\n# CONFIG_A is not set\n"),
        ];
        assert_eq!(
            merged(&fragments),
            "# CONFIG_A is not set\nCONFIG_B=\"text\"\n"
        );
        check(&fragments, "CONFIG_B=\"text\"\n").unwrap();
    }

    #[test]
    fn says_what_kconfig_did_not_give() {
        let fragments = [
            fragment("base", "CONFIG_OLD=y\n"),
            fragment(
                "mine.config",
                "CONFIG_A=y\nCONFIG_N=8\n# CONFIG_C is not set\n",
            ),
        ];
        let error = check(&fragments, "CONFIG_N=4\nCONFIG_C=y\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "mine.config asks for options that this kernel's Kconfig does not allow: \
             CONFIG_A=y (is n), CONFIG_N=8 (is 4), CONFIG_C=n (is y)"
        );
    }
}
