//! `mig fit`: which GPUs of a fleet get which layout, so that a demand is met with the least disturbance.
//!
//! Reads the fleet as `status gpu` does, or a document of it, hands it to the solver (`gpufleet_mig::fleet_fit`), and
//! writes the playbook. It changes no node.

mod fleet;
mod playbook;
mod scopes;
mod screen;

use std::{fs, io, path::Path, sync::Arc};

use gpufleet::{display::count, inventory::Inventory, report::fold_names, visible::command_line};
use gpufleet_mig::{
    demand::{self, Scope, Want},
    fleet_fit::fit_fleet,
};
use gpufleet_protocol::op::GpuStatusRequest;
use gpufleet_status::{NodeReading, from_document};

use self::{
    fleet::Fleet,
    scopes::{Hosts, Scopes},
};
use super::{
    adhoc::{Target, reach},
    args::MigFitArgs,
    environment::Environment,
    error::CommandError,
    mig::tell,
    output::Output,
    sources::{self, bounded},
    status::{groups_of, read},
};

/// Largest demand file, in bytes.
const MOST_DEMAND: u64 = 4 << 20;
/// Largest document of a fleet, in bytes: 5,000 GPUs with 64 processes each.
const MOST_FLEET: u64 = 1 << 30;
/// Time over which a reading averages use, in seconds; nothing here depends on it.
const WINDOW_S: u32 = 1;
/// Exit code of a demand that cannot be met.
const IMPOSSIBLE: u8 = 3;

/// What was read.
struct Seen {
    readings: Vec<NodeReading>,
    scopes: Scopes,
    /// Where and when, in words.
    from: String,
    /// Whether there were nodes, and none of them was reached.
    unreachable: bool,
}

pub fn fit(args: &MigFitArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let wants = wants(args)?;
    let seen = match &args.fleet {
        Some(file) => saved(args, file, &wants, environment, output)?,
        None => asked(args, &wants, environment, output)?,
    };
    let Seen { readings, scopes, from, unreachable } = &seen;
    for (variable, hosts) in &scopes.without {
        let hosts = fold_names(hosts.iter());
        output.warning(&format!("{hosts}: no value of `{variable}`, so that nothing is wanted there by it"));
    }
    let fleet = Fleet::of(readings, |host| scopes.of_host(host));
    screen::remarks(&fleet, output);
    let fit = fit_fleet(&fleet.nodes, &scopes.demands);
    let possible = fit.cost.missing == 0;
    let why = if possible { Vec::new() } else { screen::why_impossible(&fleet, scopes, &fit) };
    let cost = screen::cost(&fit, &fleet);
    let written = args.output.as_ref().filter(|_| !fit.changes.is_empty() && (possible || args.partial));
    if let Some(file) = written {
        let head = playbook::Head { from, cost: &cost, inventory: &inventory_words(args) };
        let text = playbook::text(args, &fleet, scopes, &fit, &head);
        fs::write(file, text)
            .map_err(|error| CommandError::user(format!("cannot write {}: {error}", file.display())))?;
    }
    let document = screen::document(&fleet, scopes, &fit, &why);
    tell(output, args.format, &document, || screen::text(&fleet, scopes, &fit, &cost, &why))?;
    match (written, &args.output) {
        (Some(file), _) => {
            let file = file.display().to_string();
            output.status(&format!(
                "wrote {file}; now {} {}",
                command_line(["gpufleet", "run", &file]),
                inventory_words(args)
            ));
        }
        (None, Some(file)) if possible => {
            output.status(&format!("nothing to do, so that {} was not written", file.display()));
        }
        (None, Some(file)) => {
            output.status(&format!("{} was not written; --partial writes what is possible", file.display()));
        }
        (None, None) => {}
    }
    Ok(match (possible, unreachable) {
        (true, _) => 0,
        (false, true) => 4,
        (false, false) => IMPOSSIBLE,
    })
}

/// The words of the command line that name the inventory.
fn inventory_words(args: &MigFitArgs) -> String {
    let words = args.access.inventory.inventory.iter().flat_map(|source| ["-i", source.as_str()]);
    let text = command_line(words);
    if text.is_empty() { "-i INVENTORY".to_owned() } else { text }
}

/// Everything that is wanted.
fn wants(args: &MigFitArgs) -> Result<Vec<Want>, CommandError> {
    let scope = args.by.clone().map_or(Scope::All, Scope::Each);
    let mut wants = Vec::new();
    if let Some(path) = &args.demand {
        let failed =
            |error: io::Error| CommandError::user(format!("cannot read {}: {error}", path.display()));
        let bytes = fs::File::open(path).and_then(|file| bounded(file, MOST_DEMAND)).map_err(failed)?;
        wants = demand::of_bytes(&path.display().to_string(), &bytes, &scope)?;
    }
    for word in &args.want {
        let want = demand::of_word(word, &scope).map_err(|why| {
            CommandError::user(format!("`--want {word}`: {why}")).hint("write it like `--want 1g.10gb=40`")
        })?;
        wants.push(want);
    }
    Ok(wants)
}

/// Asks every node once.
fn asked(
    args: &MigFitArgs,
    wants: &[Want],
    environment: &Environment,
    output: &Output,
) -> Result<Seen, CommandError> {
    let target = Target::read_only(&args.hosts, &args.access);
    let found = reach(&target, environment, output)?;
    let groups: Vec<Vec<String>> =
        found.hosts.iter().map(|host| groups_of(&found.inventory, host).to_vec()).collect();
    let hosts = Hosts { names: &found.hosts, groups: &groups, inventory: Some(&found.inventory) };
    let scopes = Scopes::of(wants, &hosts)?;
    let at = gpufleet::display::moment(jiff::Timestamp::now(), &jiff::tz::TimeZone::system());
    let request = GpuStatusRequest { window_s: WINDOW_S, profiles: true };
    let (readings, unreachable) = read(&target, &found, request, output)?;
    let from = format!("{} ({}), read at {at}", count(readings.len(), "node"), inventory_words(args));
    let unreachable = unreachable > 0 && unreachable == readings.len();
    Ok(Seen { readings, scopes, from, unreachable })
}

/// Takes a document of `status gpu -o json`.
fn saved(
    args: &MigFitArgs,
    file: &Path,
    wants: &[Want],
    environment: &Environment,
    output: &Output,
) -> Result<Seen, CommandError> {
    let failed = |error: io::Error| CommandError::user(format!("cannot read {}: {error}", file.display()));
    let source = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let bytes = fs::File::open(source).and_then(|file| bounded(file, MOST_FLEET)).map_err(failed)?;
    let mut readings = from_document(&bytes).map_err(|error| {
        CommandError::user(format!("{} is no document of a fleet: {error}", file.display()))
            .hint("make it with `gpufleet status gpu -i INVENTORY -o json`")
    })?;
    let inventory = inventory_of(args, environment, output)?;
    if let Some((inventory, hosts)) = &inventory {
        readings.retain(|reading| hosts.iter().any(|host| **host == *reading.node));
        for reading in &mut readings {
            reading.groups = groups_of(inventory, &reading.node);
        }
    }
    let names: Vec<String> = readings.iter().map(|reading| reading.node.to_string()).collect();
    let groups: Vec<Vec<String>> = readings.iter().map(|reading| reading.groups.to_vec()).collect();
    let inventory = inventory.as_ref().map(|(inventory, _)| inventory);
    let scopes = Scopes::of(wants, &Hosts { names: &names, groups: &groups, inventory })?;
    let from = format!("{} in {}", count(readings.len(), "node"), file.display());
    Ok(Seen { readings, scopes, from, unreachable: false })
}

/// The inventory that stands beside a document, and the hosts that are selected from it.
type Beside = (Inventory, Vec<Arc<str>>);

fn inventory_of(
    args: &MigFitArgs,
    environment: &Environment,
    output: &Output,
) -> Result<Option<Beside>, CommandError> {
    if args.access.inventory.inventory.is_empty() {
        let selects = args.access.inventory.limit.is_some() || args.hosts != "all";
        return match selects {
            true => Err(CommandError::user("hosts are selected from an inventory, and none was given")
                .hint("name it with -i; no node is contacted")),
            false => Ok(None),
        };
    }
    let (inventory, _) = sources::inventory(
        &args.access.inventory,
        &args.hosts,
        Some(".".into()),
        &args.access.extra_vars,
        environment,
        output,
    )?;
    let limit = sources::limit(&args.access.inventory, environment)?;
    let hosts = inventory.select(&args.hosts, limit.as_deref())?;
    Ok(Some((inventory, hosts)))
}
