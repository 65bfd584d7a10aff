//! `audit`: nodes are compared with playbooks, with the checks of baselines, or both.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use gpufleet::{
    diagnostic::SourceFile,
    event::{AuditScope, HEALTH, Verb},
};
use gpufleet_compliance::{
    Waivers,
    baseline::{self, Choice, GroupHint},
};

use super::{
    args::{AuditArgs, Checks},
    engine::{Request, carry_out},
    environment::Environment,
    error::CommandError,
    listing,
    loading::Loaded,
    output::Output,
};

/// The baseline of `--health`.
const USUAL: &str = "core";

pub fn audit(args: &AuditArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let mut source = args.source();
    if !args.checks.are_wanted() && (args.checks.deep || args.checks.waivers.is_some()) {
        let error = "`--deep` and `--waivers` are about checks, and none are asked for";
        return Err(CommandError::user(error).hint("add `--health`, or `--baseline NAME`"));
    }
    if args.checks.are_wanted() {
        source.playbooks.push(HEALTH.into());
        source.text = Some(play(args.checks.deep));
    }
    if args.listing.is_wanted() {
        return listing::listing(args.listing, &source, environment, output);
    }
    let checks = Some(&args.checks).filter(|checks| checks.are_wanted());
    let mut request = Request::new(Verb::Audit, &source, &args.connection, &args.documents);
    request.checks = checks;
    request.strict = args.strict;
    request.store = Some(&args.store);
    carry_out(&request, None, environment, output)
}

/// The play that reads what checks judge. Its task is tagged `always`, because `--tags` chooses among the tasks of playbooks.
fn play(deep: bool) -> String {
    format!(
        "- name: Health\n  hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n    - name: signals\n      \
         tags: always\n      health_info: {{deep: {deep}}}\n"
    )
}

/// What judges the nodes of a run: the baselines as one, the hosts of the groups that they name, and the waivers.
///
/// # Errors
/// Every mistake in these files.
pub fn scope(checks: &Checks, loaded: &Loaded, output: &Output) -> Result<AuditScope, CommandError> {
    let inventory = &loaded.inventory;
    let hint = |name: &str| {
        if inventory.group(name).is_some() || inventory.host_vars(name).is_some() {
            return GroupHint::Known;
        }
        let known: Vec<&str> = inventory.groups().map(|(group, _)| group).collect();
        GroupHint::Unknown(gpufleet::diagnostic::suggest(name, known).map(str::to_owned))
    };
    let mut choices = checks.baseline.iter().map(|word| choice(word)).collect::<Result<Vec<_>, _>>()?;
    if checks.health {
        // First, so that the others lie on top of it.
        choices.insert(0, Choice::BuiltIn(USUAL.to_owned()));
    }
    let baseline::Loaded { policy, warnings } = baseline::load(&choices, &hint)?;
    if !warnings.is_empty() {
        output.diagnostics(&warnings);
    }
    let file = checks.waivers.as_deref().map(read).transpose()?;
    let waivers = match &file {
        Some(file) => Waivers::read(file, &policy)?,
        None => Waivers::default(),
    };
    let known: BTreeSet<&str> = loaded.hosts.iter().map(String::as_str).collect();
    let members = |group: String| {
        let hosts = inventory.group(&group)?;
        let hosts = hosts.iter().map(ToString::to_string).filter(|host| known.contains(host.as_str()));
        Some((group, hosts.collect()))
    };
    let of_waivers = waivers.list().iter().flat_map(|waiver| &waiver.matches.groups);
    for group in of_waivers.clone().filter(|group| inventory.group(group).is_none()) {
        output.warning(&format!("a waiver is for the group `{group}`, which the inventory does not have"));
    }
    let named = policy.data().groups.iter().map(|entry| &entry.group).chain(of_waivers);
    let groups = named.cloned().filter_map(members).collect();
    let read: BTreeSet<&str> = loaded.play_hosts.iter().take(1).flatten().map(String::as_str).collect();
    let without = known.difference(&read).map(|host| (*host).to_owned()).collect();
    let today = jiff::Zoned::now().date();
    let text = file.map(|file| file.text().to_owned()).unwrap_or_default();
    Ok(AuditScope::new(policy, groups, without, text, today))
}

/// A built-in baseline, or a file: anything that looks like a path is one.
fn choice(word: &str) -> Result<Choice, CommandError> {
    let is_path = word.contains('/') || word.ends_with(".yaml") || word.ends_with(".yml");
    if !is_path {
        return Ok(Choice::BuiltIn(word.to_owned()));
    }
    Ok(Choice::File(read(Path::new(word))?))
}

fn read(path: &Path) -> Result<Arc<SourceFile>, CommandError> {
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot read {}: {error}", path.display()));
    let bytes = fs::read(path).map_err(failed)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| CommandError::user(format!("{} is no text in UTF-8", path.display())))?;
    Ok(SourceFile::new(path.display().to_string(), text))
}
