//! Host patterns: `gpu:!rack3`, `rack*,&training`, `~gpu(1|2)`, `gpu[0:3]`, `gpu[001-004,007]`, `@failed.txt`.
//!
//! Owns how patterns are split, matched and combined, in Ansible's order of evaluation. Invariants: a term that
//! matches nothing is an error with a suggestion, even if it only excludes; what gpufleet prints for hosts selects
//! exactly these; a term that can be read as names or as positions is an error unless both give the same hosts.

use std::collections::HashSet;
use std::sync::Arc;

use gpufleet_protocol::glob::Glob;

use super::address::parse_address;
use super::draft::ALL;
use super::load::{expands, read_file};
use super::model::{HostName, Inventory};
use super::name_regex::NameRegex;
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span, did_you_mean};
use crate::names::{NameList, fold_names, is_number_list};

/// One part of a pattern.
#[derive(Clone, Debug)]
struct Term {
    text: String,
    place: Span,
    /// Whether it comes from a pattern with commas, in which `:` does not separate.
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

/// A position or a slice behind a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subscript {
    One(i64),
    /// First and last position, both included.
    Slice(usize, Option<usize>),
}

impl Inventory {
    /// Returns the hosts of a pattern, restricted by a limit, in the order of the pattern and each once.
    ///
    /// # Errors
    /// If a term matches nothing or, unless empty selections are allowed, no host is left.
    pub fn select(&self, pattern: &str, limit: Option<&str>) -> Result<Vec<HostName>, Diagnostics> {
        let hosts = self.select_some(pattern, None, limit)?;
        if hosts.is_empty() && !self.allow_empty {
            return Err(self.nothing_selected(pattern, None, limit).into());
        }
        Ok(hosts)
    }

    /// Like [`Inventory::select`], but no host at all is fine: one of several plays may have nothing to do under a
    /// limit.
    ///
    /// `place` is the place of the pattern in a playbook.
    pub fn select_some(
        &self,
        pattern: &str,
        place: Option<&Span>,
        limit: Option<&str>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        self.select_parts(&[(pattern, place)], limit)
    }

    /// Like [`Inventory::select_some`] for a list under `hosts:`: each part is split by itself, and all are combined.
    pub fn select_parts(
        &self,
        parts: &[(&str, Option<&Span>)],
        limit: Option<&str>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        let mut errors = Diagnostics::new();
        let terms =
            parts.iter().flat_map(|(pattern, place)| split(pattern, *place, "host pattern")).collect();
        // The names of the controller that no source defines are one host, called by the first of them used.
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

    /// Returns a warning for each term that takes hosts by their positions in a group, while other hosts have these
    /// numbers in their names. Files in a `limit` are not read.
    pub fn positions(&self, parts: &[(&str, Option<&Span>)], limit: Option<&str>) -> Diagnostics {
        let terms = parts.iter().flat_map(|(pattern, place)| split(pattern, *place, "host pattern"));
        // A file in a limit may be a pipe, which can be read only once.
        let limit = limit.filter(|limit| !limit.contains('@')).and_then(|limit| limit_terms(limit).ok());
        let terms = terms.chain(limit.unwrap_or_default());
        Diagnostics(terms.filter_map(|term| self.by_position(&term)).collect()).once()
    }

    fn by_position(&self, term: &Term) -> Option<Diagnostic> {
        let name = term.name();
        let (base, Some(_)) = split_subscript(name) else { return None };
        let list =
            NameList::parse(name).filter(|list| list.doubtful && !self.host_index.contains_key(name))?;
        let taken = self.listed(&list, term, &mut None).ok()?;
        let called: Vec<HostName> = self
            .hosts
            .iter()
            .map(|host| &host.name)
            .filter(|name| list.has_number_of(name))
            .cloned()
            .collect();
        // With a colon, all numbers must name hosts: `gpu[0:3]` is Ansible's usual form for the first four.
        let likely =
            if list.colon { u64::try_from(called.len()) == Ok(list.count()) } else { !called.is_empty() };
        if !likely || same_hosts(&taken, &called) {
            return None;
        }
        let (taken, called) = (fold_names(&taken), fold_names(&called));
        Some(
            Diagnostic::warning(format!(
                "`{name}` takes hosts by their positions in `{base}`, from 0: {taken}"
            ))
            .at(&term.place)
            .note(format!("hosts with these numbers in their names: {called}"))
            .help(format!("write `{called}` if those are meant, and `{taken}` if not")),
        )
    }

    /// Returns the error for a selection that leaves no host.
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

    /// Returns the hosts of one term, whether it adds, intersects or excludes.
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
        match NameList::parse(name) {
            Some(list) => self.listed(&list, term, implicit),
            None => self.as_in_ansible(term, implicit),
        }
    }

    /// Returns the hosts of a list such as `gpu[001-004,007]`.
    fn listed(
        &self,
        list: &NameList<'_>,
        term: &Term,
        implicit: &mut Option<HostName>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        let mut known = Vec::new();
        let mut missing = Vec::new();
        for name in list.names() {
            match self.host_index.get(name.as_str()).and_then(|host| self.name(*host)) {
                Some(host) => known.push(host),
                None => missing.push(name),
            }
        }
        let by_name = |known: Vec<HostName>| match missing.is_empty() {
            true => Ok(known),
            false => Err(Diagnostics::from(self.no_hosts_of(list, term, &known, &missing))),
        };
        if !list.doubtful {
            return by_name(known);
        }
        // With a colon, all numbers must name hosts: `gpu[0:3]` is Ansible's usual form for the first four.
        let names_hosts = if list.colon { missing.is_empty() } else { !known.is_empty() };
        match self.as_in_ansible(term, implicit) {
            Ok(others) if !names_hosts || same_hosts(&others, &known) => Ok(others),
            Ok(others) => Err(ambiguous(term, &known, &others).into()),
            Err(_) if !known.is_empty() => by_name(known),
            Err(errors) => Err(errors),
        }
    }

    fn no_hosts_of(
        &self,
        list: &NameList<'_>,
        term: &Term,
        known: &[HostName],
        missing: &[String],
    ) -> Diagnostic {
        let name = term.name();
        let verb = if missing.len() == 1 { "is no host" } else { "are no hosts" };
        let error = Diagnostic::error(format!("{} {verb}", fold_names(missing)))
            .at(&term.place)
            .label(format!("names {} of the inventory", hosts_in_words(known.len())));
        let base = name.split_once('[').map_or(name, |(base, _)| base);
        if known.is_empty() && !list.doubtful && self.group_index.contains_key(base) {
            return error.help(format!(
                "numbers with leading zeros or commas are names; positions in the group `{base}` are `{base}[0:3]`"
            ));
        }
        if !known.is_empty() {
            return error.help(format!("the hosts that there are: `{}`", fold_names(known)));
        }
        let hosts = self.hosts.iter().map(|host| &*host.name);
        match missing.first().and_then(|first| did_you_mean(first, hosts)) {
            Some(help) => error.help(help),
            None => error.help("`gpufleet inventory --graph` shows all groups and hosts"),
        }
    }

    /// Returns the hosts of a name, a set of characters or a regular expression, with a position or a slice behind
    /// it.
    fn as_in_ansible(
        &self,
        term: &Term,
        implicit: &mut Option<HostName>,
    ) -> Result<Vec<HostName>, Diagnostics> {
        let name = term.name();
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

    /// Returns the hosts of matching groups and the matching hosts, with repetitions; none if nothing matches.
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

    /// Adds the hosts of matching groups, then matching hosts. Returns whether anything matched.
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
                    .help("a range of names has two numbers here, `gpu[01:16]`; letters and steps count only in an inventory");
            }
        }
        if name.contains('…') {
            return error.help("a list that ends in `…` was cut to fit; `--format json` has all names");
        }
        match did_you_mean(expression, known()) {
            Some(help) => error.help(help),
            None => error.help("`gpufleet inventory --graph` shows all groups and hosts"),
        }
    }
}

/// Returns `no host`, `1 host`, `7 hosts`.
fn hosts_in_words(number: usize) -> String {
    match number {
        0 => "no host".to_owned(),
        1 => "1 host".to_owned(),
        many => format!("{many} hosts"),
    }
}

fn same_hosts(left: &[HostName], right: &[HostName]) -> bool {
    let set = |hosts: &[HostName]| hosts.iter().cloned().collect::<HashSet<HostName>>();
    set(left) == set(right)
}

/// Returns the error for a term that selects different hosts by name than by Ansible's reading.
fn ambiguous(term: &Term, names: &[HostName], others: &[HostName]) -> Diagnostic {
    let name = term.name();
    let (base, other) = match split_subscript(name) {
        (base, Some(_)) => (base, format!("positions (from 0) in `{base}`")),
        (whole, None) => (whole, "names that match with one of these characters in that place".to_owned()),
    };
    let by_name = fold_names(names);
    let others = match others.is_empty() {
        true => "no host".to_owned(),
        false => format!("`{}`", fold_names(others)),
    };
    Diagnostic::error(format!("`{name}` may mean two things, and they are not the same hosts"))
        .at(&term.place)
        .label(format!("hosts called `{base}` and a number, or {other}"))
        .note(format!("hosts by name: `{by_name}`"))
        .note(format!("{other}: {others}"))
        .help("write the one that is meant, as it stands here; numbers with a comma are always names")
}

/// Splits a position or a slice off the end of a term; regular expressions have none.
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
        // Ansible takes an end of 0 for no end at all, which leaves a position.
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

/// Splits a pattern into its terms: at commas if there are any, else at `:` unless the whole is one name.
fn split(pattern: &str, place: Option<&Span>, name: &str) -> Vec<Term> {
    let length = pattern.chars().count();
    let (base, exact) = match place {
        Some(place) if place.length as usize == length => (place.clone(), true),
        // The span of a quoted string includes the quotes.
        Some(place) if place.length as usize == length + 2 => (place.part(1, length), true),
        Some(place) => (place.clone(), false),
        None => (Span::new(&SourceFile::new(name, pattern), 1, 1, 0), true),
    };
    let chars: Vec<char> = pattern.chars().collect();
    let commas = separating_commas(&chars);
    let in_list = !commas.is_empty();
    let ranges = if in_list {
        let begins = std::iter::once(0).chain(commas.iter().map(|at| at + 1));
        begins.zip(commas.iter().copied().chain([length])).collect()
    } else if parse_address(pattern).is_some() {
        vec![(0, length)]
    } else {
        separated(&chars, |c| c == ':' || c.is_whitespace())
    };
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

/// Returns the commas that separate terms, which are all but those of a list of numbers in brackets.
fn separating_commas(chars: &[char]) -> Vec<usize> {
    let mut commas = Vec::new();
    let mut at = 0;
    while let Some(c) = chars.get(at) {
        let behind = chars.get(at + 1..).unwrap_or_default();
        let inside = (*c == '[').then(|| behind.iter().position(|c| *c == ']')).flatten();
        match inside.and_then(|length| behind.get(..length)) {
            Some(inside) if is_number_list(&inside.iter().collect::<String>()) => at += inside.len(),
            _ if *c == ',' => commas.push(at),
            _ => {}
        }
        at += 1;
    }
    commas
}

/// Returns the ranges between separators that are outside of brackets.
fn separated(chars: &[char], separates: impl Fn(char) -> bool) -> Vec<(usize, usize)> {
    let mut stretches = Vec::new();
    let mut start = 0;
    let mut closing = None;
    for (index, &c) in chars.iter().enumerate() {
        if c == '[' && closing.is_none_or(|end| index > end) {
            closing =
                chars.iter().skip(index).position(|c| *c == ']').map(|offset| index + offset).or(closing);
        }
        let inside = closing.is_some_and(|end| index <= end);
        if !inside && separates(c) {
            stretches.push((start, index));
            start = index + 1;
        }
    }
    stretches.push((start, chars.len()));
    stretches
}

/// Returns the terms of a limit; `@FILE` stands for the lines of a file.
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
                // A line may be output of gpufleet, with commas in it.
                terms.extend(split(text, Some(&place), ""));
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
