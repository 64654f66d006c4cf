//! Reads what scripts/get_maintainer.pl prints.

/// To whom a mail goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recipients {
    /// Maintainers; without one, the lists.
    pub to: Vec<String>,
    /// Reviewers and lists.
    pub cc: Vec<String>,
}

/// More than anything that is an address.
const LONGEST: usize = 200;

/// The recipients in lines such as `A B <a@example.org> (maintainer:X)`, each once.
///
/// # Errors
/// The first line that is none, or nothing where there is no line.
pub(super) fn read(said: &str) -> Result<Recipients, String> {
    let mut found = Recipients::default();
    for line in said.lines() {
        let (address, role) = split(line).ok_or_else(|| line.to_owned())?;
        let known = found.to.iter().chain(&found.cc);
        if known.clone().any(|it| it == address) {
            continue;
        }
        match role.starts_with("maintainer") || role.starts_with("supporter") {
            true => found.to.push(address.to_owned()),
            false => found.cc.push(address.to_owned()),
        }
    }
    if found.to.is_empty() {
        std::mem::swap(&mut found.to, &mut found.cc);
    }
    match found.to.is_empty() {
        true => Err(String::new()),
        false => Ok(found),
    }
}

/// An address, and what it is there for. A name may have parentheses; behind the address comes the role.
fn split(line: &str) -> Option<(&str, &str)> {
    let (address, role) = match line.split_once("> (") {
        Some((address, role)) => (line.get(..=address.len())?, role),
        None => line.split_once(" (")?,
    };
    let plain = address.contains('@') && !address.contains(char::is_control);
    (plain && address.len() <= LONGEST).then_some((address, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maintainers_are_asked_and_others_told() {
        let said = "\"H. Peter Anvin\" <hpa@example.org> (maintainer:X86 (32-BIT))\n\
                    A (B) <a@example.org> (supporter:Y)\n\
                    R <r@example.org> (reviewer:Y)\n\
                    l@example.org (open list:BPF [MISC]:Keyword:(?:a|b))\n\
                    l@example.org (open list)\n";
        let found = read(said).unwrap();
        assert_eq!(
            found.to,
            [
                "\"H. Peter Anvin\" <hpa@example.org>",
                "A (B) <a@example.org>"
            ]
        );
        assert_eq!(found.cc, ["R <r@example.org>", "l@example.org"]);
    }

    #[test]
    fn without_a_maintainer_the_list_is_asked() {
        let found = read("l@example.org (open list)\n").unwrap();
        assert_eq!((found.to.len(), found.cc.len()), (1, 0));
    }

    #[test]
    fn what_is_no_address_is_none() {
        for said in [
            "",
            "no patch",
            "x (maintainer)",
            "a@b\x1b[1m (list)",
            "Use of uninitialized value (warning) at line 3.",
        ] {
            read(said).unwrap_err();
        }
    }
}
