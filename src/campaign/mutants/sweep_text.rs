//! The sweep that the header of a mutant names: a scenario, and where the path begins in it.

use crate::campaign::error::SweepTextError;
use crate::campaign::sweep::{PathOrigin, PathRequest};

/// Reads `SCENARIO [--no-request | --from PLACE]`, as after `unwindlab sweep`.
pub(in crate::campaign) fn parse(text: &str) -> Result<PathRequest, SweepTextError> {
    let mut scenario = None;
    let mut start = PathOrigin::Request;
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        match (word, &start) {
            ("--no-request", PathOrigin::Request) => start = PathOrigin::WithoutRequest,
            ("--from", PathOrigin::Request) => {
                let place = words.next().unwrap_or_default();
                let parsed = place.parse();
                let wrong = |_| SweepTextError::From(place.to_owned());
                start = PathOrigin::From(parsed.map_err(wrong)?);
            }
            _ if scenario.is_none() && !word.starts_with('-') => scenario = Some(word.into()),
            _ => return Err(SweepTextError::Word(word.to_owned())),
        }
    }
    let scenario = scenario.ok_or(SweepTextError::NoScenario)?;
    Ok(PathRequest { scenario, start })
}

#[cfg(test)]
mod tests {
    use unwindlab_guest_kernel::build::header;

    use super::*;

    #[test]
    fn every_sweep_that_a_mutant_names_is_one() {
        let all = header::mutants().unwrap();
        let named: Vec<String> = all.into_iter().filter_map(|mutant| mutant.sweep).collect();
        assert!(named.len() > 10);
        for text in named {
            let path = parse(&text).unwrap();
            let file = format!("scenarios/{}.yaml", path.scenario.display());
            assert!(std::path::Path::new(&file).exists(), "{file}");
        }
    }

    #[test]
    fn a_path_begins_where_the_text_says() {
        let start = |text| parse(text).map(|path| path.start);
        assert_eq!(start("a"), Ok(PathOrigin::Request));
        assert_eq!(start("a --no-request"), Ok(PathOrigin::WithoutRequest));
        let place = "do_syscall_64+0x1".parse().unwrap();
        assert_eq!(
            start("--from do_syscall_64+0x1 a"),
            Ok(PathOrigin::From(place))
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, words) in [
            ("", "it names no scenario"),
            ("--no-request", "it names no scenario"),
            ("a --nothing", "found `--nothing`"),
            ("a b", "found `b`"),
            ("a --no-request --from f", "found `--from`"),
            ("a --from", "--from: found ``"),
            ("a --from 1+", "--from: found `1+`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
