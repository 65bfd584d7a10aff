//! From a command line to all that a run needs to know before it contacts a node.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics, Span},
    event::HEALTH,
    interpreter::{CachedFiles, check_files},
    inventory::{HostName, Inventory},
    playbook::{Known, Order, Play, Program, Reader, TagFilter},
    rollout::Amount,
    template::Dict,
    vault::Keyring,
};
use gpufleet_protocol::Disruption;
use serde_json::{Map, Value};

use super::{
    args::{PlaybookSource, TaskChoice},
    environment::Environment,
    error::CommandError,
    given_names,
    output::Output,
    sources, vault_passwords,
};

/// The name of a playbook that lies in no file.
pub const AD_HOC: &str = "<exec>";

/// Everything read and checked; no node was contacted.
pub struct Loaded {
    /// As the first playbook sees it.
    pub inventory: Arc<Inventory>,
    /// As each play sees it: the variable files beside the playbook that it stands in count.
    pub of_plays: Vec<Arc<Inventory>>,
    pub program: Arc<Program>,
    pub extra: Map<String, Value>,
    pub keyring: Arc<Keyring>,
    pub play_hosts: Vec<Vec<String>>,
    /// Hosts that `--limit` leaves out of each play, where a scheduler may tell of their outages.
    pub neighbours: Vec<Vec<String>>,
    /// Hosts of any play, in inventory order.
    pub hosts: Vec<String>,
    /// Whether a limit may leave hosts of plays out.
    pub limited: bool,
}

impl Loaded {
    /// Returns the hosts of any play by group of the inventory, without `all` and `ungrouped`, which every inventory has.
    pub fn groups(&self) -> BTreeMap<String, Vec<String>> {
        let selected: HashSet<&str> = self.hosts.iter().map(String::as_str).collect();
        let groups = self.inventory.groups().filter(|(name, _)| !["all", "ungrouped"].contains(name));
        let members = |hosts: Vec<HostName>| -> Vec<String> {
            hosts.iter().map(ToString::to_string).filter(|host| selected.contains(host.as_str())).collect()
        };
        groups
            .map(|(name, hosts)| (name.to_owned(), members(hosts)))
            .filter(|(_, hosts)| !hosts.is_empty())
            .collect()
    }
}

/// Reads and checks what a command line names.
///
/// # Errors
/// Every mistake in inventory, variables and playbooks, and an empty selection.
pub fn load(
    source: &PlaybookSource,
    max_unavailable: Option<Amount>,
    environment: &Environment,
    output: &Output,
) -> Result<Loaded, CommandError> {
    let first = source.playbooks.first().and_then(|playbook| playbook.parent()).map(Path::to_path_buf);
    let directory = first.map(|dir| if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir });
    let keyring = vault_passwords::keyring(&source.inventory.vault, environment)?;
    let extra = sources::extra_vars(&source.choice.extra_vars, &keyring)?;
    let names: Vec<String> = source.playbooks.iter().map(|path| path.display().to_string()).collect();
    let extra_dict = Arc::new(Dict::trusted(&extra));
    let read = || program(source, &names, &keyring, &extra_dict, environment);
    // Why not always: mistakes in the inventory are reported first.
    let (program, only_here) = match sources::has_inventory(&source.inventory) {
        true => (None, false),
        false => {
            let program = read()?;
            let patterns = patterns(&program, &extra_dict)?;
            let patterns = patterns.iter().map(String::as_str);
            let only_here = sources::only_here(&source.inventory, patterns, output);
            (Some(program), only_here)
        }
    };
    let around = sources::Around {
        playbook_dir: directory.clone(),
        extra_vars: extra.clone(),
        keyring: Arc::clone(&keyring),
        only_here,
        ..sources::Around::default()
    };
    let mut inventory = sources::inventory_in(&source.inventory, around, environment)?;
    output.diagnostics(&inventory.suspects());
    let limit = sources::limit(&source.inventory, environment)?;
    output.diagnostics(&inventory.positions(&[], limit.as_deref()));
    let program = program.map_or_else(read, Ok)?;
    if !program.warnings.is_empty() {
        output.diagnostics(&program.warnings);
    }
    sources::warn_of_others(&source.inventory, directory.as_deref(), &program.sources, environment, output);
    check_tags(&program, &source.choice, output)?;
    let whole = program;
    let mut program = chosen(&whole, &source.choice)?;
    let reads_health = names.last().is_some_and(|name| name == HEALTH);
    if reads_health {
        // First, because a host of which a task cannot be judged takes no part in later plays.
        program.plays.rotate_right(1);
    }
    let (mut play_hosts, mut neighbours) = (Vec::new(), Vec::new());
    let mut emptied = Vec::new();
    for play in &program.plays {
        let parts = play.host_parts(&extra_dict)?;
        let parts: Vec<(&str, Option<&Span>)> =
            parts.iter().map(|(part, place)| (part.as_str(), Some(place))).collect();
        output.diagnostics(&inventory.positions(&parts, None));
        let select = |limit: Option<&str>| -> Result<Vec<String>, CommandError> {
            let hosts = inventory.select_parts(&parts, limit)?;
            Ok(hosts.iter().map(ToString::to_string).collect())
        };
        // Why: no node is contacted for a play of which nothing is left.
        let is_over = source.choice.start_at_task.is_some() && play.sections.is_empty();
        let mut selected: Vec<String> = match is_over {
            true => Vec::new(),
            false => select(limit.as_deref())?,
        };
        if selected.is_empty() && !is_over && !source.inventory.allow_empty {
            let pattern = play.host_pattern(&extra_dict)?;
            let place = parts.first().and_then(|(_, place)| *place);
            if select(None)?.is_empty() {
                return Err(Diagnostics::from(inventory.nothing_selected(&pattern, place, None)).into());
            }
            let nothing = inventory.nothing_selected(&pattern, place, limit.as_deref());
            emptied.push((pattern, nothing));
        }
        order(play.order, &mut selected);
        match max_unavailable {
            None => _ = play.budget(selected.len(), limit.is_some())?,
            Some(amount) if play.disruption > Disruption::Live && !selected.is_empty() => {
                amount.budget(selected.len(), limit.is_some()).map_err(|cause| {
                    CommandError::user(format!("`--max-unavailable`, play `{}`: {cause}", play.name))
                })?;
            }
            Some(_) => {}
        }
        neighbours.push(match limit.is_none() || play.policy.drain.is_none() {
            true => Vec::new(),
            false => {
                let taken: HashSet<&str> = selected.iter().map(String::as_str).collect();
                select(None)?.into_iter().filter(|host| !taken.contains(host.as_str())).collect()
            }
        });
        play_hosts.push(selected);
    }
    if reads_health && play_hosts.len() > 1 {
        let others: HashSet<String> = play_hosts[1..].iter().flatten().cloned().collect();
        play_hosts[0].retain(|host| others.contains(host));
    }
    let selected: BTreeSet<&String> = play_hosts.iter().flatten().collect();
    // Why no mistake of one play: of several a limit leaves those in which its hosts take part.
    if selected.is_empty() {
        let mut nothing = Diagnostics::new();
        emptied.into_iter().for_each(|(_, error)| nothing.push(error));
        nothing.into_result(())?;
    } else if !emptied.is_empty() {
        let plays: Vec<String> = emptied.iter().map(|(pattern, _)| format!("`{pattern}`")).collect();
        output.status(&format!("the limit leaves no host of {}: passed over", plays.join(", ")));
    }
    let hosts: Vec<String> =
        inventory.hosts().iter().map(ToString::to_string).filter(|host| selected.contains(host)).collect();
    let hosts = if hosts.len() == selected.len() { hosts } else { selected.into_iter().cloned().collect() };
    let mut elsewhere = seen_from_elsewhere(&inventory, &program)?;
    inventory.unlock(&hosts)?;
    let mut known = Known { variables: known_names(&inventory, &hosts, &extra) };
    for other in elsewhere.values_mut() {
        other.unlock(&hosts)?;
        known.variables.extend(known_names(other, &hosts, &extra));
    }
    let mut wrong = whole.check_variables(&known);
    wrong.append(whole.check_logins(|host| inventory.host_vars(host).is_some()));
    let files = CachedFiles::with_keyring(sources::Disk, Arc::clone(&keyring));
    wrong.append(check_files(&whole, &files));
    wrong.into_result(())?;
    let given = &source.choice.extra_vars;
    let misspelt = given_names::misspelt(given, &whole, &inventory, &hosts, &extra, &files);
    if !misspelt.is_empty() {
        output.diagnostics(&misspelt);
    }
    if hosts.is_empty() && !source.inventory.allow_empty {
        return Err(CommandError::user("no host is selected")
            .hint("`gpufleet hosts PATTERN` shows what a pattern selects"));
    }
    let inventory = Arc::new(inventory);
    let elsewhere: HashMap<String, Arc<Inventory>> =
        elsewhere.into_iter().map(|(folder, inventory)| (folder, Arc::new(inventory))).collect();
    let of_play = |play: &Arc<Play>| Arc::clone(elsewhere.get(&play.directory).unwrap_or(&inventory));
    Ok(Loaded {
        of_plays: program.plays.iter().map(of_play).collect(),
        inventory: Arc::clone(&inventory),
        program: Arc::new(program),
        extra,
        keyring,
        play_hosts,
        neighbours,
        hosts,
        limited: limit.is_some(),
    })
}

/// What the plays ask for.
fn patterns(program: &Program, extra: &Arc<Dict>) -> Result<Vec<String>, Diagnostics> {
    let mut all = Vec::new();
    for play in &program.plays {
        all.extend(play.host_parts(extra)?.into_iter().map(|(pattern, _)| pattern));
    }
    Ok(all)
}

/// The inventory as plays see it that stand in other folders than the first playbook, by folder; nothing of those that
/// see the same.
fn seen_from_elsewhere(
    inventory: &Inventory,
    program: &Program,
) -> Result<HashMap<String, Inventory>, Diagnostics> {
    let mut found = HashMap::new();
    let mut errors = Diagnostics::new();
    let folders: BTreeSet<&String> = program.plays.iter().map(|play| &play.directory).collect();
    for folder in folders {
        let path = if folder.is_empty() { Path::new(".") } else { Path::new(folder) };
        if let Some(Some(seen)) = errors.absorb(inventory.seen_from(path)) {
            found.insert(folder.clone(), seen);
        }
    }
    errors.into_result(found)
}

/// The playbooks as written.
pub fn program(
    source: &PlaybookSource,
    names: &[String],
    keyring: &Arc<Keyring>,
    extra: &Arc<Dict>,
    environment: &Environment,
) -> Result<Program, CommandError> {
    let reader = AdHocOrDisk { text: source.text.as_deref() };
    Ok(Program::load_knowing(
        names,
        &reader,
        keyring,
        &roles_path(source, environment),
        extra,
        source.keep.keep,
    )?)
}

/// The files of this machine, and the playbook that lies in none.
struct AdHocOrDisk<'a> {
    text: Option<&'a str>,
}

impl Reader for AdHocOrDisk<'_> {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        match self.text {
            Some(text) if [AD_HOC, HEALTH].contains(&path) => Ok(text.as_bytes().to_vec()),
            _ => sources::Disk.read(path),
        }
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        sources::Disk.list(folder)
    }
}

/// Hosts that may do tasks for others; if only a host's variables tell, any host may.
pub fn delegates(loaded: &Loaded) -> Result<Vec<String>, CommandError> {
    let (mut found, mut anybody) = (BTreeSet::new(), false);
    for task in loaded.program.plays.iter().flat_map(|play| play.tasks()) {
        match task.delegate_to.as_ref().map(|host| (host.as_str(), host.is_settled())) {
            None => {}
            Some((Some(host), true)) if is_known(&loaded.inventory, host) => {
                _ = found.insert(host.to_owned())
            }
            Some((Some(host), true)) => {
                let error = Diagnostic::error(format!("the inventory has no host `{host}`"))
                    .at(&task.span)
                    .label("it is to be done there (`delegate_to`)");
                let names = loaded.inventory.hosts();
                let error = error.suggest(host, names.iter().map(|name| &**name));
                return Err(Diagnostics::from(error).into());
            }
            Some(_) => anybody = true,
        }
    }
    if anybody {
        found.extend(loaded.inventory.hosts().iter().map(ToString::to_string));
        found.insert("localhost".to_owned());
    }
    Ok(found.into_iter().filter(|host| !loaded.hosts.contains(host)).collect())
}

fn is_known(inventory: &Inventory, host: &str) -> bool {
    Inventory::is_this_machine(host) || inventory.host_vars(host).is_some()
}

/// Where roles are looked for, beside `roles/` at the playbook: what the settings say, else as in Ansible.
fn roles_path(source: &PlaybookSource, environment: &Environment) -> Vec<String> {
    if !source.roles_path.is_empty() {
        return source.roles_path.clone();
    }
    usual_roles_path(environment)
}

/// Where Ansible looks for roles.
pub fn usual_roles_path(environment: &Environment) -> Vec<String> {
    let home = environment.home.iter().map(|home| home.join(".ansible/roles").display().to_string());
    home.chain(["/usr/share/ansible/roles".to_owned(), "/etc/ansible/roles".to_owned()]).collect()
}

/// What `--tags` and `--skip-tags` leave.
pub fn tags(choice: &TaskChoice) -> TagFilter {
    TagFilter { only: choice.tags.clone(), skip: choice.skip_tags.clone() }
}

/// The program as `--start-at-task` and `--force-handlers` make it.
pub fn chosen(program: &Program, choice: &TaskChoice) -> Result<Program, CommandError> {
    let mut chosen = match &choice.start_at_task {
        None => program.clone(),
        Some(wanted) => program.starting_at(wanted, &tags(choice)).map_err(|names| {
            let error = CommandError::user(format!("no task to start at is called `{wanted}`"));
            match gpufleet::diagnostic::suggest(wanted, names.iter().map(String::as_str)) {
                Some(close) => error.hint(format!("did you mean `{close}`?")),
                None => error.hint("--list-tasks shows their names"),
            }
        })?,
    };
    if choice.force_handlers {
        for play in &mut chosen.plays {
            Arc::make_mut(play).force_handlers = true;
        }
    }
    Ok(chosen)
}

/// Refuses tags that no task has: the run would look at nothing and find nothing wrong. Such a tag beside others, or one to
/// skip, is only a warning, because one command line may serve several playbooks.
fn check_tags(program: &Program, choice: &TaskChoice, output: &Output) -> Result<(), CommandError> {
    let tags: BTreeSet<&str> = program
        .plays
        .iter()
        .flat_map(|play| {
            play.tasks().into_iter().flat_map(|task| task.tags.iter().map(String::as_str)).collect::<Vec<_>>()
        })
        .collect();
    let special = ["all", "always", "never", "tagged", "untagged"];
    let is_unknown = |tag: &&String| !tags.contains(tag.as_str()) && !special.contains(&tag.as_str());
    let leaves_nothing = choice.tags.iter().all(|tag| is_unknown(&tag));
    for tag in choice.tags.iter().filter(|_| !leaves_nothing).chain(&choice.skip_tags).filter(is_unknown) {
        output.warning(&format!("no task has the tag `{tag}`"));
    }
    let Some(tag) = choice.tags.first().filter(|_| leaves_nothing) else { return Ok(()) };
    let error = CommandError::user(format!("no task has the tag `{tag}`"));
    let known = tags.iter().copied().collect::<Vec<_>>();
    Err(match (gpufleet::diagnostic::suggest(tag, known.iter().copied()), known.is_empty()) {
        (Some(close), _) => error.hint(format!("did you mean `{close}`?")),
        (None, true) => error.hint("no task of these playbooks has a tag"),
        (None, false) => error.hint(format!("tags are: {}", known.join(", "))),
    })
}

/// Puts hosts in the order that a play asks for.
fn order(order: Order, hosts: &mut [String]) {
    match order {
        Order::Inventory => {}
        Order::ReverseInventory => hosts.reverse(),
        Order::Sorted => hosts.sort(),
        Order::ReverseSorted => hosts.sort_by(|a, b| b.cmp(a)),
        Order::Shuffle => hosts.sort_by_cached_key(|_| uuid::Uuid::new_v4()),
    }
}

/// Names that a template may use because some selected host has them.
pub fn known_names(inventory: &Inventory, hosts: &[String], extra: &Map<String, Value>) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = extra.keys().cloned().collect();
    let mut seen = BTreeSet::new();
    for host in hosts {
        let Some(vars) = inventory.host_vars(host) else { continue };
        if seen.insert(Arc::as_ptr(vars.shared())) {
            names.extend(vars.shared().keys().cloned());
        }
        names.extend(vars.own().keys().cloned());
    }
    names
}
