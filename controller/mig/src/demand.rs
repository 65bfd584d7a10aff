//! What people want of a fleet: how many instances of which profile, and where.
//!
//! Reads it from a file, with the places of mistakes, or from words such as `1g.10gb=40`. Must not know a fleet: whether
//! a group, a variable or a profile exists is for whoever has one.

use std::sync::Arc;

use gpufleet_language::{
    diagnostic::{Diagnostic, Diagnostics, SourceFile, Span},
    yaml::{self, Node},
};

use crate::{fleet_fit::Wish, parted};

/// The word for GPUs with MIG off.
pub const WHOLE: &str = "whole";
const GROUPS: &str = "groups";
const BY: &str = "by";
const WHAT: &str = "a demand";
const HELP: &str = "profiles look like `3g.40gb` or `1g.10gb+me`; `whole` is a GPU with MIG off";

/// Over which nodes a number is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All that were selected.
    All,
    /// Those of a group of the inventory.
    Group(String),
    /// For each value of this variable: the nodes that have it.
    Each(String),
}

/// One number of a demand.
#[derive(Clone, Debug, PartialEq)]
pub struct Want {
    pub scope: Scope,
    pub wish: Wish,
    pub count: u32,
    /// Where its scope stands, for messages.
    pub scope_at: Option<Span>,
    /// Where its profile stands.
    pub at: Option<Span>,
}

/// Reads the bytes of a demand file. Numbers that stand for no group are counted over `scope`.
///
/// # Errors
/// All mistakes, with their places.
pub fn of_bytes(name: &str, bytes: &[u8], scope: &Scope) -> Result<Vec<Want>, Diagnostics> {
    read(&yaml::decode(name, bytes)?, scope)
}

fn read(source: &Arc<SourceFile>, scope: &Scope) -> Result<Vec<Want>, Diagnostics> {
    let root = yaml::parse_source(source)?;
    let entries = root.expect_map(WHAT)?;
    let mut errors = Diagnostics::new();
    let mut wants = Vec::new();
    for (key, value) in entries {
        let scopes = match key.key_text().as_str() {
            GROUPS => Scope::Group as fn(String) -> Scope,
            BY => Scope::Each,
            _ => {
                wants.extend(want(key, value, scope, None, &mut errors));
                continue;
            }
        };
        for (key, value) in
            errors.absorb(value.expect_map(&format!("`{}`", key.key_text()))).unwrap_or_default()
        {
            let name = key.key_text();
            let what = format!("what is wanted of `{name}`");
            for (profile, count) in errors.absorb(value.expect_map(&what)).unwrap_or_default() {
                wants.extend(want(profile, count, &scopes(name.clone()), Some(&key.span), &mut errors));
            }
        }
    }
    if wants.is_empty() && !errors.has_errors() {
        let error = Diagnostic::error("nothing is wanted").at(&root.span);
        errors.push(error.help("a demand is a mapping such as `{1g.10gb: 40, 3g.40gb: 6}`"));
    }
    errors.into_result(wants)
}

fn want(
    key: &Node,
    value: &Node,
    scope: &Scope,
    scope_at: Option<&Span>,
    errors: &mut Diagnostics,
) -> Option<Want> {
    let name = key.key_text();
    let wish = match wish(&name) {
        Ok(wish) => wish,
        Err(why) => {
            let error = Diagnostic::error(why).at(&key.span);
            // At the top there are also words that are no profiles.
            let words: &[&str] = if scope_at.is_none() { &[GROUPS, BY, WHOLE] } else { &[WHOLE] };
            errors.push(match gpufleet_language::diagnostic::suggest(&name, words.iter().copied()) {
                Some(close) => error.help(format!("did you mean `{close}`?")),
                None => error.help(HELP),
            });
            return None;
        }
    };
    let Some(count) =
        value.as_i64().and_then(|number| u32::try_from(number).ok()).filter(|count| *count <= MOST)
    else {
        let error = format!("`{name}` wants a whole number, from 0 to {MOST}");
        errors.push(Diagnostic::error(error).at(&value.span));
        return None;
    };
    let (scope, scope_at) = (scope.clone(), scope_at.cloned());
    Some(Want { scope, wish, count, scope_at, at: Some(key.span.clone()) })
}

/// More instances than any fleet has.
const MOST: u32 = 10_000_000;

/// Reads what is wanted in a word.
///
/// # Errors
/// Why it is no profile, and not `whole`.
fn wish(name: &str) -> Result<Wish, String> {
    if name == WHOLE {
        return Ok(Wish::Whole);
    }
    parted::check_profile(name).map_err(|why| format!("`{name}` is no MIG profile: {why}"))?;
    let base = name.split(['+', '-']).next().unwrap_or(name);
    match base.split('.').count() {
        2 => Ok(Wish::Profile(name.to_owned())),
        _ => Err(format!("`{name}` is a part of a GPU instance; a demand is for whole ones")),
    }
}

/// Reads a number from a word such as `1g.10gb=40`.
///
/// # Errors
/// What is wrong with it.
pub fn of_word(word: &str, scope: &Scope) -> Result<Want, String> {
    let (name, count) = word.split_once('=').ok_or("it is not like `1g.10gb=40`")?;
    let wish = wish(name)?;
    let count = count.parse().ok().filter(|count| *count <= MOST);
    let count = count.ok_or_else(|| format!("`{name}` wants a whole number, from 0 to {MOST}"))?;
    Ok(Want { scope: scope.clone(), wish, count, scope_at: None, at: None })
}

/// Whether a name is that of a profile of GPU instances.
pub fn is_profile(name: &str) -> bool {
    name != WHOLE && wish(name).is_ok()
}

/// The name of a wish.
pub fn name(wish: &Wish) -> &str {
    match wish {
        Wish::Whole => WHOLE,
        Wish::Profile(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_language::diagnostic::render;

    use super::*;

    fn told(text: &str) -> String {
        let mistakes = read(&SourceFile::new("demand.yaml", text), &Scope::All).unwrap_err();
        render(&mistakes, false)
    }

    #[test]
    fn numbers_are_for_all_for_groups_and_for_each_value_of_a_variable() {
        let text = "1g.10gb: 40\nwhole: 2\ngroups:\n  inference: {3g.40gb: 6}\nby: {rack: {7g.80gb: 1}}\n";
        let wants = read(&SourceFile::new("demand.yaml", text), &Scope::All).unwrap();
        let found: Vec<(Scope, &str, u32)> =
            wants.iter().map(|want| (want.scope.clone(), name(&want.wish), want.count)).collect();
        assert_eq!(
            found,
            [
                (Scope::All, "1g.10gb", 40),
                (Scope::All, "whole", 2),
                (Scope::Group("inference".to_owned()), "3g.40gb", 6),
                (Scope::Each("rack".to_owned()), "7g.80gb", 1),
            ]
        );
        assert!(of_word("1g.12gb+me.all=1", &Scope::All).is_ok());
        let each = Scope::Each("rack".to_owned());
        assert_eq!(of_word("1g.10gb=7", &each).map(|want| (want.scope, want.count)), Ok((each, 7)));
        assert!(of_word("1g.10gb", &Scope::All).is_err() && of_word("1g.10gb=-1", &Scope::All).is_err());
    }

    #[test]
    fn every_mistake_is_told_with_its_place() {
        let text = "1g.10g: 4\n3g.40gb: many\n1c.3g.40gb: 1\ngroup: {a: {1g.10gb: 1}}\ngroups: [a]\nby: {rack: {1g.10gb: -1}}\n";
        let told = told(text);
        for part in [
            "demand.yaml:1:1",
            "`1g.10g` is no MIG profile",
            "demand.yaml:2:10",
            "wants a whole number",
            "demand.yaml:3:1",
            "a part of a GPU instance",
            "demand.yaml:4:1",
            "did you mean `groups`?",
            "demand.yaml:5:9",
            "demand.yaml:6:22",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(self::told("{}").contains("nothing is wanted"));
        assert!(self::told("[1]").contains("demand.yaml:1:1"));
    }
}
