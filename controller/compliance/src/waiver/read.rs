//! Reads the file of waivers, with the places of its mistakes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use gpufleet_language::diagnostic::{Diagnostic, Diagnostics, SourceFile};
use gpufleet_language::yaml::{self, Node};
use gpufleet_protocol::glob::Glob;
use jiff::civil::Date;

use super::{MOST_DAYS, Match, Waiver, Waivers, days};
use crate::catalogue::{Catalogue, Check};
use crate::places;
use crate::policy::Policy;
use crate::rule::{self, Code, Context};
use crate::verdict::Scope;

const KEYS: [&str; 10] =
    ["id", "check", "match", "reason", "owner", "ticket", "created", "expires", "ceiling", "gate"];
const MATCH_KEYS: [&str; 3] = ["nodes", "groups", "subject"];

impl Waivers {
    /// Reads a file: a list of waivers. `policy` tells which own checks there are.
    ///
    /// # Errors
    /// All mistakes, with their places: also a check that does not exist or cannot be waived, and an end that is more
    /// than [`MOST_DAYS`] days after the beginning.
    pub fn read(source: &Arc<SourceFile>, policy: &Policy) -> Result<Self, Diagnostics> {
        let root = yaml::parse_source(source)?;
        let mut errors = Diagnostics::new();
        let mut list = Vec::new();
        let mut seen = HashSet::new();
        let items = if root.is_null() { &[] } else { root.expect_seq("a file of waivers")? };
        for item in items {
            if errors.absorb(item.expect_map("a waiver")).is_none() {
                continue;
            }
            errors.append(item.refuse_unknown_keys("a waiver", &KEYS));
            let Some(waiver) = read(item, policy, &mut errors) else { continue };
            if !seen.insert(Arc::clone(&waiver.id)) {
                let place = item.get("id").unwrap_or(item);
                errors.push(
                    Diagnostic::error(format!("a waiver `{}` stands above already", waiver.id))
                        .at(&place.span),
                );
            }
            list.push(waiver);
        }
        errors.into_result(Self { list })
    }
}

fn read(item: &Node, policy: &Policy, errors: &mut Diagnostics) -> Option<Waiver> {
    let what = "a waiver";
    let id = places::text(item, "id", what, errors);
    let check = places::text(item, "check", what, errors);
    let reason = places::text(item, "reason", what, errors);
    let owner = places::text(item, "owner", what, errors);
    let created = date(item, "created", errors);
    let expires = date(item, "expires", errors);
    let matches = matching(item, errors);
    let ticket = match item.get("ticket") {
        Some(node) => errors.absorb(node.expect_str("`ticket`")).map(str::to_owned),
        None => None,
    };
    let gate = match item.get("gate") {
        Some(node) => errors.absorb(node.expect_bool("`gate`")).unwrap_or_default(),
        None => false,
    };
    if let (Some(created), Some(expires)) = (created, expires) {
        term(item, created, expires, errors);
    }
    let check = check?;
    let named = named(&check, item.get("check")?, policy, errors);
    let code = match item.get("ceiling") {
        Some(node) => ceiling(node, &named, errors),
        None => None,
    };
    Some(Waiver {
        id: id?.into(),
        check,
        matches: matches?,
        reason: reason?,
        owner: owner?,
        ticket,
        created: created?,
        expires: expires?,
        ceiling: item.get("ceiling").and_then(Node::as_str).map(str::to_owned),
        gate,
        code,
    })
}

fn date(item: &Node, key: &str, errors: &mut Diagnostics) -> Option<Date> {
    let Some(node) = item.get(key) else {
        errors.push(Diagnostic::error(format!("a waiver needs `{key}`")).at(&item.span));
        return None;
    };
    let text = node.scalar_text().unwrap_or_default();
    let date = text.parse::<Date>();
    if date.is_err() {
        errors.push(
            Diagnostic::error(format!("`{key}` wants a date")).at(&node.span).help("write it as 2026-02-28"),
        );
    }
    date.ok()
}

fn term(item: &Node, created: Date, expires: Date, errors: &mut Diagnostics) {
    let term = days(created, expires);
    let Some(node) = item.get("expires") else { return };
    if term < 0 {
        errors.push(Diagnostic::error("the waiver ends before it begins").at(&node.span));
    } else if term > MOST_DAYS {
        let last = created.checked_add(jiff::Span::new().days(MOST_DAYS));
        let error = Diagnostic::error(format!(
            "a waiver holds for at most {MOST_DAYS} days, and this one for {term}"
        ))
        .at(&node.span);
        errors.push(match last {
            Ok(last) => error.help(format!("the last day can be {last}; renew it then, with its reason")),
            Err(_) => error,
        });
    }
}

fn matching(item: &Node, errors: &mut Diagnostics) -> Option<Match> {
    let Some(node) = item.get("match") else {
        errors.push(
            Diagnostic::error("a waiver needs `match`")
                .at(&item.span)
                .help("say where it holds: `match: {nodes: [gpu017]}`, or `groups`"),
        );
        return None;
    };
    errors.absorb(node.expect_map("`match`"))?;
    errors.append(node.refuse_unknown_keys("`match`", &MATCH_KEYS));
    let mut names = |key: &str| -> Vec<String> {
        let Some(value) = node.get(key) else { return Vec::new() };
        if let Some(one) = value.as_str() {
            return vec![one.to_owned()];
        }
        let items = errors.absorb(value.expect_seq(&format!("`{key}`"))).unwrap_or_default();
        items.iter().filter_map(|item| errors.absorb(item.expect_str("a name")).map(str::to_owned)).collect()
    };
    let (nodes, groups) = (names("nodes"), names("groups"));
    if nodes.is_empty() && groups.is_empty() {
        errors.push(
            Diagnostic::error("`match` names no nodes and no groups")
                .at(&node.span)
                .help("`nodes: ['*']` stands for every node"),
        );
    }
    let subject = match node.get("subject") {
        Some(value) => errors.absorb(value.expect_str("`subject`")).map(str::to_owned),
        None => None,
    };
    Some(Match { nodes, groups, subject })
}

/// Returns the checks that a waiver names, and reports a name that stands for none.
fn named<'a>(check: &str, node: &Node, policy: &'a Policy, errors: &mut Diagnostics) -> Vec<&'a Arc<Check>> {
    let glob = Glob::new(check);
    let own = policy.data().own_checks.iter().map(|own| own.id.as_str());
    let all: Vec<&str> = Catalogue::get().ids().iter().map(String::as_str).chain(own).collect();
    let found: Vec<&Arc<Check>> =
        all.iter().filter(|id| glob.matches(id)).filter_map(|id| policy.check(id)).collect();
    if found.is_empty() {
        errors.push(
            Diagnostic::error(format!("no check matches `{check}`")).at(&node.span).suggest(check, all),
        );
    } else if found.iter().all(|check| !check.waivable) {
        errors.push(
            Diagnostic::error(format!("`{check}` cannot be waived"))
                .at(&node.span)
                .note("a node on which this check is not ok must not look healthy"),
        );
    }
    found
}

fn ceiling(node: &Node, named: &[&Arc<Check>], errors: &mut Diagnostics) -> Option<Code> {
    let text = errors.absorb(node.expect_str("`ceiling`"))?;
    let params = BTreeMap::new();
    let context = Context { scope: None, params: &params, checks: Catalogue::get().ids(), own: None };
    let code = match rule::parse(text).and_then(|expr| rule::compile(&expr, context)) {
        Ok(code) => code,
        Err(error) => {
            errors.push(places::in_rule(node, &error));
            return None;
        }
    };
    let scope = code.scope();
    if let Some(other) = named.iter().find(|check| scope != Scope::Node && check.scope != scope) {
        errors.push(
            Diagnostic::error(format!(
                "`{}` is a check of each {}, and this reads a {scope}",
                other.id, other.scope
            ))
            .at(&node.span),
        );
    }
    Some(code)
}
