//! `# noqa` comments.

use std::sync::Arc;

use super::rules::{RULES, rule};
use super::run::Finding;
use crate::diagnostic::{Diagnostic, SourceFile, Span, suggest};

/// Rules that the comment on a line silences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    All,
    Rules(Vec<&'static str>),
}

impl Silence {
    pub(super) fn covers(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Rules(rules) => rules.contains(&name),
        }
    }
}

/// Returns the words behind `# noqa` on a line and where they begin, in characters; `None` without such a comment.
fn comment(line: &str) -> Option<(usize, &str)> {
    let at = line.match_indices('#').find_map(|(at, _)| {
        let begins = at == 0 || line.get(..at)?.ends_with([' ', '\t']);
        let rest = line.get(at + 1..)?.trim_start().strip_prefix("noqa")?;
        let ends = rest.is_empty() || rest.starts_with([':', ' ', '\t']);
        (begins && ends).then_some(line.len() - rest.len())
    })?;
    Some((line.get(..at)?.chars().count(), line.get(at..)?))
}

fn names(words: &str) -> impl Iterator<Item = &str> {
    words.split([':', ',', ' ', '\t']).map(str::trim).filter(|name| !name.is_empty())
}

/// Returns what line `number` silences.
pub(super) fn of_line(source: &SourceFile, number: u32) -> Option<Silence> {
    let (_, words) = comment(source.line(number)?)?;
    let mut rules = Vec::new();
    let mut any = false;
    for name in names(words) {
        any = true;
        rules.extend(rule(name).map(|rule| rule.name));
    }
    Some(if any { Silence::Rules(rules) } else { Silence::All })
}

/// Reports comments that name no rule where a rule was probably meant.
pub(super) fn check(source: &Arc<SourceFile>, findings: &mut Vec<Finding>) {
    for (index, line) in source.text().split('\n').enumerate() {
        let Some((column, words)) = comment(line) else { continue };
        for name in names(words) {
            if rule(name).is_some() {
                continue;
            }
            // Only near misses: ansible-lint and others have rules of their own, and a comment may go on in prose.
            let known = RULES.iter().map(|rule| rule.name);
            let Some(near) = suggest(name, known) else { continue };
            let before =
                words.find(name).and_then(|at| words.get(..at)).map_or(0, |text| text.chars().count());
            let to_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            let span = Span::new(
                source,
                to_u32(index + 1),
                to_u32(column + before + 1),
                to_u32(name.chars().count()),
            );
            findings.push(Finding::new(
                "unknown-noqa",
                Diagnostic::warning(format!("no rule is called `{name}`"))
                    .at(&span)
                    .help(format!("did you mean `{near}`?")),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_name_rules_or_all() {
        let source = SourceFile::new(
            "p",
            "- command: a # noqa: no-changed-when, name[missing]\n- b: c  # noqa\n- d: 'x#noqa'\n- e: f # noqa truthy why\n",
        );
        assert_eq!(of_line(&source, 1), Some(Silence::Rules(vec!["no-changed-when", "name-missing"])));
        assert_eq!(of_line(&source, 2), Some(Silence::All));
        assert_eq!(of_line(&source, 3), None);
        assert_eq!(of_line(&source, 4), Some(Silence::Rules(vec!["truthy"])));
    }
}
