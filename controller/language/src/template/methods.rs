//! Python's text methods that the engine lacks.
//!
//! Must not know where a template is used. Methods that change lists and mappings are in [`super::mutable`].

use minijinja::Error;
use minijinja::value::from_args;

use super::bounds;
use super::mutable::refusal;

type Engine = minijinja::Value;

/// Largest number of blanks that a method adds.
const MAX_PADDING: usize = 1_000_000;

/// Refuses calls whose result would be too large, of methods here and in the engine.
pub(super) fn bounded(text: &str, method: &str, args: &[Engine]) -> Result<(), Error> {
    let length = |index: usize| args.get(index).and_then(Engine::as_str).map_or(0, str::len);
    let all = |message: String| refusal(method, &message);
    match method {
        "format" => bounds::formatted(text, args),
        "replace" => {
            let old = args.first().and_then(Engine::as_str).unwrap_or_default();
            bounds::product(text.matches(old).count(), length(1), text.len()).map_err(all)
        }
        "join" => {
            let Some(Ok(items)) = args.first().map(Engine::try_iter) else { return Ok(()) };
            let mut size = 0_usize;
            for item in items {
                let item = item.as_str().map_or(bounds::ITEM, str::len);
                size = size.saturating_add(item).saturating_add(text.len());
                bounds::room(size).map_err(all)?;
            }
            bounds::spend(size).map_err(all)
        }
        _ => bounds::spend(text.len()).map_err(all),
    }
}

/// Calls one of Python's text methods that the engine lacks.
pub(super) fn of_text(text: &str, method: &str, args: &[Engine]) -> Option<Result<Engine, Error>> {
    let length = text.chars().count();
    let padded = |left: usize, right: usize, with: char| {
        let fill = |count: usize| std::iter::repeat_n(with, count);
        Engine::from(fill(left).chain(text.chars()).chain(fill(right)).collect::<String>())
    };
    let missing = |width: i64| {
        let missing = usize::try_from(width).unwrap_or_default().saturating_sub(length);
        if missing > MAX_PADDING { Err(refusal(method, "the width is too large")) } else { Ok(missing) }
    };
    Some(match method {
        "ljust" | "rjust" | "center" => from_args(args).and_then(|(width, with): (i64, Option<&str>)| {
            let missing = missing(width)?;
            let mut with = with.unwrap_or(" ").chars();
            let (Some(fill), None) = (with.next(), with.next()) else {
                return Err(refusal(method, "it fills with one character"));
            };
            Ok(match method {
                "ljust" => padded(0, missing, fill),
                "rjust" => padded(missing, 0, fill),
                _ => {
                    // As in Python, the odd blank goes to the left if the width is odd.
                    let left = missing / 2 + (missing & usize::try_from(width).unwrap_or_default() & 1);
                    padded(left, missing - left, fill)
                }
            })
        }),
        "zfill" => from_args(args).and_then(|(width,): (i64,)| {
            let zeros = "0".repeat(missing(width)?);
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Ok(Engine::from(format!("{sign}{zeros}{digits}")))
        }),
        "partition" | "rpartition" => from_args(args).and_then(|(at,): (&str,)| {
            if at.is_empty() {
                return Err(refusal(method, "it wants a text to part at"));
            }
            let parts = match method {
                "partition" => text.split_once(at).map_or([text, "", ""], |(left, right)| [left, at, right]),
                _ => text.rsplit_once(at).map_or(["", "", text], |(left, right)| [left, at, right]),
            };
            Ok(Engine::from(parts.map(Engine::from).to_vec()))
        }),
        "removeprefix" => {
            from_args(args).map(|(part,): (&str,)| Engine::from(text.strip_prefix(part).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args(args).map(|(part,): (&str,)| Engine::from(text.strip_suffix(part).unwrap_or(text)))
        }
        "swapcase" => from_args(args).map(|()| {
            let swapped = text.chars().map(|c| match c.is_uppercase() {
                true => c.to_lowercase().to_string(),
                false => c.to_uppercase().to_string(),
            });
            Engine::from(swapped.collect::<String>())
        }),
        "index" => from_args(args).and_then(|(part,): (&str,)| {
            let at = text.find(part).and_then(|at| text.get(..at)).map(|before| before.chars().count());
            at.map(Engine::from).ok_or_else(|| refusal(method, "the text does not have this part"))
        }),
        "rsplit" => from_args(args).and_then(|(at, most): (Option<&str>, Option<i64>)| {
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let mut parts: Vec<&str> = match at {
                Some("") => return Err(refusal(method, "it wants a text to part at")),
                Some(at) => text.rsplitn(most.saturating_add(1), at).collect(),
                None => words_from_behind(text, most),
            };
            parts.reverse();
            Ok(parts.into_iter().map(Engine::from).collect::<Vec<_>>().into())
        }),
        "rindex" => from_args(args).and_then(|(part,): (&str,)| {
            let at = text.rfind(part).and_then(|at| text.get(..at)).map(|before| before.chars().count());
            at.map(Engine::from).ok_or_else(|| refusal(method, "the text does not have this part"))
        }),
        "casefold" => from_args(args).map(|()| Engine::from(text.to_lowercase().replace('ß', "ss"))),
        // Ansible has no bytes in values; text stands for them.
        "encode" => from_args(args).and_then(|(encoding,): (Option<&str>,)| {
            match encoding.unwrap_or("utf-8").to_ascii_lowercase().replace('_', "-").as_str() {
                "utf-8" | "utf8" => Ok(Engine::from(text)),
                "ascii" if text.is_ascii() => Ok(Engine::from(text)),
                _ => Err(refusal(method, "there is `utf-8` only")),
            }
        }),
        "expandtabs" => from_args(args).and_then(|(size,): (Option<usize>,)| {
            let size = size.unwrap_or(8);
            let tabs = text.matches('\t').count();
            if tabs.saturating_mul(size) > MAX_PADDING {
                return Err(refusal(method, "the width is too large"));
            }
            let (mut out, mut column) = (String::new(), 0);
            for c in text.chars() {
                match c {
                    '\t' => {
                        let blanks = if size == 0 { 0 } else { size - column % size };
                        out.extend(std::iter::repeat_n(' ', blanks));
                        column += blanks;
                    }
                    c => {
                        out.push(c);
                        column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    }
                }
            }
            Ok(Engine::from(out))
        }),
        "isdecimal" => from_args(args)
            .map(|()| Engine::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))),
        "isidentifier" => from_args(args).map(|()| {
            let begins = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            Engine::from(begins && text.chars().all(|c| c.is_alphanumeric() || c == '_'))
        }),
        "istitle" => from_args(args).map(|()| {
            let (mut inside, mut seen) = (false, false);
            let right = text.chars().all(|c| {
                let fits = if c.is_uppercase() { !inside } else { !c.is_lowercase() || inside };
                inside = c.is_uppercase() || c.is_lowercase();
                seen |= inside;
                fits
            });
            Engine::from(right && seen)
        }),
        _ => return None,
    })
}

/// Splits a text into words from the end; after `most` splits the rest stays together.
fn words_from_behind(text: &str, most: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        match rest.rsplit_once(char::is_whitespace) {
            Some((before, word)) if words.len() < most => {
                words.push(word);
                rest = before.trim_end();
            }
            _ => {
                words.push(rest);
                break;
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::{Scope, render};

    fn shown(source: &str) -> String {
        render(source, &Scope::new(Vec::new()))
            .map_or_else(|error| format!("error: {}", error.message()), |value| value.to_json().to_string())
    }

    #[test]
    fn texts_have_the_methods_of_python() {
        for (source, expected) in [
            (
                "{{ 'ab'.ljust(4) ~ '|' ~ 'ab'.rjust(4, '.') ~ '|' ~ 'ab'.center(5, '*') ~ '|' ~ 'abc'.center(6, '*') }}",
                "\"ab  |..ab|**ab*|*abc**\"",
            ),
            ("{{ ['-7'.zfill(4), '7'.zfill(3), 'abc'.zfill(2)] }}", r#"["-007","007","abc"]"#),
            (
                "{{ ['a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'a'.partition('=')] }}",
                r#"[["a","=","b=c"],["a=b","=","c"],["a","",""]]"#,
            ),
            (
                "{{ ['v1.2'.removeprefix('v'), 'a.conf'.removesuffix('.conf'), 'aB'.swapcase(), 'abc'.index('c')] }}",
                r#"["1.2","a","Ab",2]"#,
            ),
            (
                "{{ ['a b c'.rsplit(' ', 1), ' a  b c '.rsplit(none, 1), 'a.b'.rsplit('.'), ' a'.rsplit(), 'abcabc'.rindex('c')] }}",
                r#"[["a b","c"],[" a  b","c"],["a","b"],["a"],5]"#,
            ),
            (
                "{{ ['Straße'.casefold(), 'a\tb'.expandtabs(4), 'é'.encode('utf-8'), [1, 2, 1].index(1, 1)] }}",
                r#"["strasse","a   b","é",2]"#,
            ),
            (
                "{{ ['12'.isdecimal(), ''.isdecimal(), 'a_1'.isidentifier(), '1a'.isidentifier(), 'A B'.istitle(), 'AB'.istitle()] }}",
                "[true,false,true,false,true,false]",
            ),
            ("{{ 'a'.ljust(9999999999) }}", "error: `ljust`: the width is too large"),
            ("{{ 'abc'.index('x') }}", "error: `index`: the text does not have this part"),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }
}
