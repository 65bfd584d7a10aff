//! Host patterns: `gpu:!rack3`, `rack*,&training`, `~gpu(1|2)`, `gpu[0:3]`, `@failed.txt`.
//!
//! Owns how patterns are split, matched and combined, in Ansible's order of evaluation. Invariant: a term that
//! matches nothing is an error with a suggestion, also when it only excludes.

use std::collections::HashSet;
use std::sync::Arc;

use super::address::parse_address;
use super::draft::ALL;
use super::load::{expands, read_file};
use super::model::{HostName, Inventory};
use super::name_regex::NameRegex;
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span, did_you_mean};
use crate::glob::Glob;

/// One part of a pattern.
#[derive(Clone, Debug)]
struct Term {
    text: String,
    place: Span,
    /// Whether it came from a pattern with commas in it, where `:` does not separate.
    in_list: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Union,
    Intersection,
    Exclusion,
}

impl Term {
    fn role(&self) -> Role {
        match self.text.chars().next() {
            Some('&') => Role::Intersection,
            Some('!') => Role::Exclusion,
            _ => Role::Union,
        }
    }

    fn name(&self) -> &str {
        self.text.strip_prefix(['&', '!']).unwrap_or(&self.text)
    }
}

/// A position or slice behind a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subscript {
    One(i64),
    /// Both ends belong to it.
    Slice(usize, Option<usize>),
}

impl Inventory {
    /// The hosts of a pattern, of which a limit may leave fewer; in the order the pattern names them, each once.
    ///
    /// Fails when a term matches nothing, and, unless empty selections are allowed, when no host is left.
    pub fn select(&self, pattern: &str, limit: Option<&str>) -> Result<Vec<HostName>, Diagnostics> {
        let hosts = self.select_some(pattern, None, limit)?;
        if hosts.is_empty() && !self.allow_empty {
            return Err(self.nothing_selected(pattern, None, limit).into());
        }
        Ok(hosts)
    }

    /// Like [`Inventory::select`], but no host at all is fine: a play of several may have nothing to do under a limit.
    ///
    /// `place` is where the pattern stands in a playbook.
    pub fn select_some(
        &self,
        pattern: &str,
        place: Option<&Span>,
        limit: Option<&str>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        self.select_parts(&[(pattern, place)], limit)
    }

    /// Like [`Inventory::select_some`] for `hosts:` written as a list: each part is split by itself, all count together.
    pub fn select_parts(
        &self,
        parts: &[(&str, Option<&Span>)],
        limit: Option<&str>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        let mut errors = Diagnostics::new();
        let terms =
            parts.iter().flat_map(|(pattern, place)| split(pattern, *place, "host pattern")).collect();
        // Why: all names of this machine that no source defines are one host, called by the first of them.
        let mut implicit = None;
        let hosts = errors.absorb(self.evaluate(terms, &mut implicit));
        let limit = limit.map(|limit| {
            errors.absorb(limit_terms(limit).and_then(|terms| self.evaluate(terms, &mut implicit)))
        });
        if errors.has_errors() {
            return Err(errors);
        }
        let mut hosts = hosts.unwrap_or_default();
        if let Some(limit) = limit {
            let limit: HashSet<HostName> = limit.unwrap_or_default().into_iter().collect();
            hosts.retain(|host| limit.contains(host));
        }
        Ok(hosts)
    }

    /// The error for a selection that leaves no host.
    pub fn nothing_selected(&self, pattern: &str, place: Option<&Span>, limit: Option<&str>) -> Diagnostic {
        let mut error = match limit {
            Some(limit) => {
                Diagnostic::error(format!("no host is left of `{pattern}` with the limit `{limit}`"))
            }
            None => Diagnostic::error(format!("no host is left of `{pattern}`")),
        };
        if let Some(place) = place {
            error = error.at(place);
        }
        error.help(
            "`gpufleet hosts PATTERN` shows what a pattern selects; `--allow-empty` makes this no error",
        )
    }

    fn evaluate(
        &self,
        terms: Vec<Term>,
        implicit: &mut Option<HostName>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        let mut errors = Diagnostics::new();
        let mut hosts: Vec<HostName> = Vec::new();
        let role = |role: Role| terms.iter().filter(move |term| term.role() == role);
        if role(Role::Union).next().is_none() {
            hosts = self.members(ALL);
        }
        for term in role(Role::Union) {
            hosts.extend(errors.absorb(self.matching(term, implicit)).unwrap_or_default());
        }
        for term in role(Role::Intersection) {
            let matching: HashSet<HostName> =
                errors.absorb(self.matching(term, implicit)).unwrap_or_default().into_iter().collect();
            hosts.retain(|host| matching.contains(host));
        }
        for term in role(Role::Exclusion) {
            let matching: HashSet<HostName> =
                errors.absorb(self.matching(term, implicit)).unwrap_or_default().into_iter().collect();
            hosts.retain(|host| !matching.contains(host));
        }
        let mut seen = HashSet::new();
        hosts.retain(|host| seen.insert(Arc::clone(host)));
        errors.into_result(hosts)
    }

    /// The hosts of one term, whatever its role.
    fn matching(&self, term: &Term, implicit: &mut Option<HostName>) -> Result<Vec<HostName>, Diagnostics> {
        let name = term.name();
        if name.is_empty() {
            return Err(Diagnostic::error(format!("a name is missing behind `{}`", term.text))
                .at(&term.place)
                .into());
        }
        if let Some(host) = self.host_index.get(name).filter(|_| term.role() == Role::Union) {
            return Ok(self.name(*host).into_iter().collect());
        }
        let (expression, subscript) = split_subscript(name);
        let Some(hosts) = self.enumerate(expression, term, implicit)? else {
            return Err(self.matches_nothing(term, expression, subscript).into());
        };
        let Some(subscript) = subscript.filter(|_| !hosts.is_empty()) else { return Ok(hosts) };
        let chosen = match subscript {
            Subscript::One(index) => {
                let count = i64::try_from(hosts.len()).unwrap_or(i64::MAX);
                let index = if index < 0 { index + count } else { index };
                usize::try_from(index).ok().and_then(|index| hosts.get(index)).cloned().into_iter().collect()
            }
            Subscript::Slice(start, end) => {
                let end = end.map_or(hosts.len(), |end| end.saturating_add(1)).min(hosts.len());
                hosts.get(start..end).map(<[HostName]>::to_vec).unwrap_or_default()
            }
        };
        if chosen.is_empty() {
            return Err(Diagnostic::error(format!("`{name}` selects nothing"))
                .at(&term.place)
                .label(match hosts.len() {
                    1 => format!("`{expression}` has 1 host, at position 0"),
                    count => format!("`{expression}` has {count} hosts, at positions 0 to {}", count - 1),
                })
                .into());
        }
        Ok(chosen)
    }

    /// Hosts of groups and hosts that match, with repetitions; none if neither a group nor a host does.
    fn enumerate(
        &self,
        expression: &str,
        term: &Term,
        implicit: &mut Option<HostName>,
    ) -> Result<Option<Vec<HostName>>, Diagnostics> {
        let mut hosts = Vec::new();
        let mut matched = false;
        if let Some(pattern) = expression.strip_prefix('~') {
            let regex = NameRegex::new(pattern).map_err(|reason| {
                Diagnostic::error("this is no valid regular expression").at(&term.place).label(reason)
            })?;
            let matches = |name: &str| regex.is_match(name);
            matched = self.collect(&matches, &mut hosts);
        } else if expression.contains(['*', '?', '[']) {
            let glob = Glob::new(expression);
            matched = self.collect(&|name: &str| glob.matches(name), &mut hosts);
        } else {
            if let Some(&group) = self.group_index.get(expression) {
                matched = true;
                hosts.extend(self.members(group));
            }
            if let Some(&host) =
                self.host_index.get(expression).filter(|_| !matched || expression.contains('.'))
            {
                matched = true;
                hosts.extend(self.name(host));
            }
        }
        if hosts.is_empty()
            && let Some(host) = self.localhost(expression)
        {
            let host = if self.contains(&host) { host } else { implicit.get_or_insert(host).clone() };
            return Ok(Some(vec![host]));
        }
        Ok((matched || expression == "all").then_some(hosts))
    }

    /// Adds the hosts of matching groups, then matching hosts; whether anything matched.
    fn collect(&self, matches: &dyn Fn(&str) -> bool, hosts: &mut Vec<HostName>) -> bool {
        let mut matched = false;
        for (id, _) in self.groups.iter().enumerate().filter(|(_, group)| matches(&group.name)) {
            matched = true;
            hosts.extend(self.members(id));
        }
        for host in self.hosts.iter().filter(|host| matches(&host.name)) {
            matched = true;
            hosts.push(Arc::clone(&host.name));
        }
        matched
    }

    fn matches_nothing(&self, term: &Term, expression: &str, subscript: Option<Subscript>) -> Diagnostic {
        let name = term.name();
        let error = Diagnostic::error(format!("`{name}` matches no host and no group"))
            .at(&term.place)
            .label(match term.role() {
                Role::Union => "selects nothing",
                Role::Intersection => "leaves nothing",
                Role::Exclusion => "excludes nothing",
            });
        if term.in_list && name.contains(':') && !name.contains('[') {
            return error.help(format!(
                "in a pattern with a comma, `:` separates nothing: write `{}`",
                term.text.replace(':', ",")
            ));
        }
        let known = || {
            let groups = self.groups.iter().map(|group| group.name.as_str());
            groups.chain(self.hosts.iter().map(|host| &*host.name))
        };
        if name.ends_with(']') {
            let glob = Glob::new(name);
            if subscript.is_some() && known().any(|known| glob.matches(known)) {
                return error.help(format!(
                    "`[…]` at the end is a position in a group, not a set of characters: write `{name}*` or `~{name}$`"
                ));
            }
            let base = name.rsplit_once('[').map_or(name, |(base, _)| base);
            if subscript.is_none() && known().any(|known| known == base) {
                return error.help(format!(
                    "a position is `{base}[2]` or `{base}[-1]`, a slice `{base}[0:3]` or `{base}[2:]`"
                ));
            }
            if expands(name) {
                return error
                    .help("`[…:…]` is a slice of a group here; it is a range of names only in an inventory");
            }
        }
        match did_you_mean(expression, known()) {
            Some(help) => error.help(help),
            None => error.help("`gpufleet inventory --graph` shows all groups and hosts"),
        }
    }
}

/// Splits a position or slice off the end of a term; regular expressions have none.
fn split_subscript(name: &str) -> (&str, Option<Subscript>) {
    let parsed = || {
        let (base, inside) = name.strip_suffix(']')?.rsplit_once('[')?;
        if base.is_empty() || name.starts_with('~') {
            return None;
        }
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits(inside.strip_prefix('-').unwrap_or(inside)) {
            return Some((base, Subscript::One(inside.parse().ok()?)));
        }
        let (start, end) = inside.split_once([':', '-'])?;
        if !digits(start) || !(end.is_empty() || digits(end)) {
            return None;
        }
        let start = start.parse().ok()?;
        // Why: to Ansible an end of 0 is no end at all, and what is left is a position.
        Some((
            base,
            match end.parse::<usize>() {
                Ok(0) => Subscript::One(i64::try_from(start).ok()?),
                Ok(end) => Subscript::Slice(start, Some(end)),
                Err(_) => Subscript::Slice(start, None),
            },
        ))
    };
    parsed().map_or((name, None), |(base, subscript)| (base, Some(subscript)))
}

/// Splits a pattern into its terms: at commas if there is one, else at `:` unless the whole is one name.
fn split(pattern: &str, place: Option<&Span>, name: &str) -> Vec<Term> {
    let length = pattern.chars().count();
    let (base, exact) = match place {
        Some(place) if place.length as usize == length => (place.clone(), true),
        // Why: a string in quotes; its text begins behind the first one.
        Some(place) if place.length as usize == length + 2 => (place.part(1, length), true),
        Some(place) => (place.clone(), false),
        None => (Span::new(&SourceFile::new(name, pattern), 1, 1, 0), true),
    };
    let in_list = pattern.contains(',');
    let ranges = if in_list {
        separated(pattern, |c, _| c == ',')
    } else if parse_address(pattern).is_some() {
        vec![(0, length)]
    } else {
        separated(pattern, |c, inside| !inside && (c == ':' || c.is_whitespace()))
    };
    let chars: Vec<char> = pattern.chars().collect();
    let mut terms = Vec::new();
    for (start, end) in ranges {
        let text: String = chars.get(start..end).unwrap_or_default().iter().collect();
        let blanks = text.chars().take_while(|c| c.is_whitespace()).count();
        let text = text.trim().to_owned();
        if !text.is_empty() {
            let place = if exact { base.part(start + blanks, text.chars().count()) } else { base.clone() };
            terms.push(Term { text, place, in_list });
        }
    }
    terms
}

/// The stretches between separators; the second argument of `separates` says whether brackets are open.
fn separated(text: &str, separates: impl Fn(char, bool) -> bool) -> Vec<(usize, usize)> {
    let chars: Vec<char> = text.chars().collect();
    let mut stretches = Vec::new();
    let mut start = 0;
    let mut closing = None;
    for (index, &c) in chars.iter().enumerate() {
        if c == '[' && closing.is_none_or(|end| index > end) {
            closing =
                chars.iter().skip(index).position(|c| *c == ']').map(|offset| index + offset).or(closing);
        }
        let inside = closing.is_some_and(|end| index <= end);
        if separates(c, inside) {
            stretches.push((start, index));
            start = index + 1;
        }
    }
    stretches.push((start, chars.len()));
    stretches
}

/// The terms of a limit; `@FILE` stands for the lines of a file.
fn limit_terms(limit: &str) -> Result<Vec<Term>, Diagnostics> {
    let mut terms = Vec::new();
    for term in split(limit, None, "--limit") {
        let Some(path) = term.text.strip_prefix('@') else {
            terms.push(term);
            continue;
        };
        let path = std::path::Path::new(path);
        if !path.is_file() {
            return Err(Diagnostic::error(format!(
                "there is no file `{}` to take the limit from",
                path.display()
            ))
            .at(&term.place)
            .into());
        }
        let source = read_file(path)?;
        for (number, line) in (1u32..).zip(source.text().lines()) {
            let text = line.trim();
            if !text.is_empty() && !text.starts_with('#') {
                let blanks = line.chars().take_while(|c| c.is_whitespace()).count();
                let place = Span::new(&source, number, 1, 0).part(blanks, text.chars().count());
                terms.push(Term { text: text.to_owned(), place, in_list: false });
            }
        }
        if terms.is_empty() {
            return Err(Diagnostic::error(format!("`{}` names no host", path.display()))
                .at(&term.place)
                .into());
        }
    }
    Ok(terms)
}
