//! `audit`: nodes are compared with playbooks, with the checks of baselines, or both.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use gpufleet::{
    diagnostic::SourceFile,
    event::{AuditScope, HEALTH, Verb},
};
use gpufleet_compliance::{
    AskedReading, Waivers,
    baseline::{self, Choice, GroupHint},
};
use gpufleet_protocol::glob::Glob;
use serde_json::json;

use super::{
    args::{AuditArgs, Checks},
    engine::{Request, carry_out},
    environment::Environment,
    error::CommandError,
    listing,
    loading::Loaded,
    output::Output,
    sources::bounded,
    trust::{Care, Trust},
};

/// Largest file of a baseline or of waivers, in bytes.
const MOST_BYTES: u64 = 4 << 20;
/// The baseline of `--health`.
const USUAL: &str = "core";
/// The variable of the play that has what own checks read.
const OWN: &str = "own_readings";

/// What judges the nodes.
pub struct AskedChecks<'a> {
    /// Read once, as a file may be a pipe.
    baselines: Vec<Choice>,
    waivers: Option<&'a Path>,
}

pub fn audit(args: &AuditArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let mut source = args.source();
    if !args.checks.are_wanted() && (args.checks.deep || args.checks.waivers.is_some()) {
        let error = "`--deep` and `--waivers` are about checks, and none are asked for";
        return Err(CommandError::user(error).hint("add `--health`, or `--baseline NAME`"));
    }
    if args.playbooks.is_empty() && !args.checks.are_wanted() {
        let error = CommandError::user("nothing to compare the nodes with: no playbook, and no checks");
        return Err(error.hint("add `--health`, or `--baseline NAME`, or a playbook"));
    }
    let asked = if args.checks.are_wanted() {
        let baselines = choices(&args.checks)?;
        source.playbooks.push(HEALTH.into());
        // What the inventory says does not matter to what is read.
        let policy = baseline::load(&baselines, &|_| GroupHint::Known)?.policy;
        source.text = Some(play(args.checks.deep, &policy.own_readings()));
        Some(AskedChecks { baselines, waivers: args.checks.waivers.as_deref() })
    } else {
        None
    };
    if args.listing.is_wanted() {
        return listing::listing(args.listing, &source, environment, output);
    }
    let mut request = Request::new(Verb::Audit, &source, &args.connection, &args.documents);
    request.checks = asked.as_ref();
    request.strict = args.strict;
    request.store = Some(&args.store);
    carry_out(&request, None, environment, output)
}

/// The play that reads what checks judge. Its task is tagged `always`, because `--tags` chooses among the tasks of playbooks.
fn play(deep: bool, own: &[AskedReading<'_>]) -> String {
    let (mut vars, mut reads) = (String::new(), String::new());
    if !own.is_empty() {
        let all: Vec<_> = own.iter().map(|asked| asked.read).collect();
        // Not to be taken for templates: `docker ps --format '{{.ID}}'`.
        vars = format!("  vars:\n    {OWN}: !unsafe {}\n", json!(all));
        let each =
            own.iter().enumerate().map(|(at, asked)| match (asked.everywhere, asked.turns.as_slice()) {
                (true, []) => format!("[{OWN}[{at}]]"),
                _ => format!("([{OWN}[{at}]] if {} else [])", is_asked(asked)),
            });
        let each: Vec<String> = each.collect();
        reads = format!(", reads: {}", json!(format!("{{{{ {} }}}}", each.join(" + "))));
    }
    format!(
        "- name: Health\n  hosts: all\n  gather_facts: false\n  become: true\n{vars}  tasks:\n    - name: signals\n      \
         tags: always\n      health_info: {{deep: {deep}{reads}}}\n"
    )
}

/// Returns the condition on which a host is asked for a reading of an own check.
fn is_asked(asked: &AskedReading<'_>) -> String {
    let mut condition = asked.everywhere.to_string();
    for (group, on) in &asked.turns {
        // All hosts are in `all`, and `group_names` leaves it out.
        let member = match *group {
            "all" => "true".to_owned(),
            group => format!("({0} in group_names or inventory_hostname == {0})", json!(group)),
        };
        condition = match on {
            true => format!("({member} or {condition})"),
            false => format!("({condition} and not {member})"),
        };
    }
    condition
}

/// What judges the nodes of a run: the baselines as one, the hosts of the groups that they name, and the waivers.
///
/// # Errors
/// Every mistake in these files.
pub fn scope(checks: &AskedChecks<'_>, loaded: &Loaded, output: &Output) -> Result<AuditScope, CommandError> {
    let inventory = &loaded.inventory;
    let hint = |name: &str| {
        if inventory.group(name).is_some() || inventory.host_vars(name).is_some() {
            return GroupHint::Known;
        }
        let known: Vec<&str> = inventory.groups().map(|(group, _)| group).collect();
        GroupHint::Unknown(gpufleet::diagnostic::suggest(name, known).map(str::to_owned))
    };
    let baseline::Loaded { policy, warnings } = baseline::load(&checks.baselines, &hint)?;
    if !warnings.is_empty() {
        output.diagnostics(&warnings);
    }
    let file = checks.waivers.map(read).transpose()?;
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
    let hosts = inventory.hosts();
    for waiver in waivers.list() {
        for pattern in &waiver.matches.nodes {
            let glob = Glob::new(pattern);
            if !hosts.iter().any(|host| glob.matches(host)) {
                let text = format!(
                    "the waiver `{}` is for `{pattern}`, and the inventory has no such host",
                    waiver.id
                );
                output.warning(&text);
            }
        }
    }
    let named = policy.data().groups.iter().map(|entry| &entry.group).chain(of_waivers);
    let groups = named.cloned().filter_map(members).collect();
    let grouped =
        inventory.groups().map(|(group, _)| group).filter(|group| !matches!(*group, "all" | "ungrouped"));
    let siblings = grouped.map(str::to_owned).filter_map(members).collect();
    let read: BTreeSet<&str> = loaded.play_hosts.iter().take(1).flatten().map(String::as_str).collect();
    let without = known.difference(&read).map(|host| (*host).to_owned()).collect();
    let today = jiff::Zoned::now().date();
    let text = file.map(|file| file.text().to_owned()).unwrap_or_default();
    Ok(AuditScope::new(policy, groups, without, text, today).with_siblings(siblings))
}

/// The baselines that are asked for.
fn choices(checks: &Checks) -> Result<Vec<Choice>, CommandError> {
    let mut choices =
        checks.baseline.iter().map(|word| choice(word, Path::new(""))).collect::<Result<Vec<_>, _>>()?;
    if checks.health {
        // First, so that the others lie on top of it.
        choices.insert(0, Choice::BuiltIn(USUAL.to_owned()));
    }
    Ok(choices)
}

/// Reads baselines, by name or by path from a folder, and forgets them.
///
/// # Errors
/// Every mistake in them, also one that does not exist.
pub fn demand_baselines(words: &[String], folder: &Path) -> Result<(), CommandError> {
    let choices = words.iter().map(|word| choice(word, folder)).collect::<Result<Vec<_>, _>>()?;
    if !choices.is_empty() {
        baseline::load(&choices, &|_| GroupHint::Known)?;
    }
    Ok(())
}

/// A built-in baseline, or a file: anything that looks like a path is one.
fn choice(word: &str, folder: &Path) -> Result<Choice, CommandError> {
    let is_path = word.contains('/') || word.ends_with(".yaml") || word.ends_with(".yml");
    if !is_path {
        return Ok(Choice::BuiltIn(word.to_owned()));
    }
    Ok(Choice::File(read(&folder.join(word))?))
}

fn read(path: &Path) -> Result<Arc<SourceFile>, CommandError> {
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot read {}: {error}", path.display()));
    // What it asks for may be a command that root runs on each node.
    Trust::of_this_process().demand(path, "what is judged", Care::Shared)?;
    let bytes = fs::File::open(path).and_then(|file| bounded(file, MOST_BYTES)).map_err(failed)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| CommandError::user(format!("{} is no text in UTF-8", path.display())))?;
    Ok(SourceFile::new(path.display().to_string(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play_of(text: &str) -> String {
        let source = SourceFile::new("site.yaml", text);
        let policy = baseline::load(&[Choice::File(source)], &|_| GroupHint::Known).unwrap().policy;
        play(false, &policy.own_readings())
    }

    #[test]
    fn own_readings_are_taken_where_their_checks_are_asked() {
        let none = play_of("extends: core\n");
        assert!(!none.contains("vars"), "{none}");
        let one = "{id: site.a, title: A, severity: low, read: {command: [docker, ps, '{{.ID}}']}, when: value == \"\"}";
        let two = "{id: site.b, title: B, severity: low, read: {file: /etc/b}, when: value == \"\"}";
        let groups = "groups:\n  h200: {checks: [site.b]}\n  old: {without: [site.b]}\n";
        let text = play_of(&format!("own_checks:\n  - {one}\n  - {two}\nwithout: [site.b]\n{groups}"));
        insta::assert_snapshot!(text, @r#"
    - name: Health
      hosts: all
      gather_facts: false
      become: true
      vars:
        own_readings: !unsafe [{"id":"site.a","command":["docker","ps","{{.ID}}"],"as":"text","timeout_s":10},{"id":"site.b","file":"/etc/b","as":"text","timeout_s":10}]
      tasks:
        - name: signals
          tags: always
          health_info: {deep: false, reads: "{{ [own_readings[0]] + ([own_readings[1]] if (((\"h200\" in group_names or inventory_hostname == \"h200\") or false) and not (\"old\" in group_names or inventory_hostname == \"old\")) else []) }}"}
    "#);
    }
}
