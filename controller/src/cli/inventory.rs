//! `inventory` and `hosts`.

use std::path::PathBuf;

use super::{
    args::{HostsArgs, InventoryArgs},
    environment::Environment,
    error::CommandError,
    output::Output,
    sources::{self, Around},
    vault_passwords,
};

pub fn inventory(
    args: &InventoryArgs,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    // Why: what an export shows lies in the files named; the current folder is only where a playbook would lie.
    let implied = args.playbook_dir.is_none();
    let current = || (!args.export).then(|| PathBuf::from("."));
    let keyring = vault_passwords::keyring(&args.inventory.vault, environment)?;
    let around = Around {
        playbook_dir: args.playbook_dir.clone().or_else(current),
        implied,
        extra_vars: sources::extra_vars(&args.extra_vars, &keyring)?,
        keyring,
        only_here: false,
    };
    let inventory = sources::inventory_in(&args.inventory, around, environment)?;
    let limit = sources::limit(&args.inventory, environment)?;
    let limit = limit.as_deref();
    let text = match (&args.host, &args.graph) {
        (Some(host), _) if args.yaml => inventory.host_yaml(host, args.export)?,
        (Some(host), _) => inventory.host_text(host, args.export)?,
        (None, Some(group)) => {
            inventory.graph_text(args.group.as_ref().unwrap_or(group), args.vars, args.export)?
        }
        (None, None) if args.yaml => inventory.list_yaml(limit, args.export)?,
        (None, None) => inventory.list_text(limit, args.export)?,
    };
    match &args.output_file {
        Some(path) => std::fs::write(path, &text)
            .map_err(|error| CommandError::user(format!("cannot write {}: {error}", path.display())))?,
        None => output.data(&text)?,
    }
    Ok(0)
}

pub fn hosts(args: &HostsArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let (inventory, _) =
        sources::inventory(&args.inventory, &args.pattern, None, &args.extra_vars, environment, output)?;
    let limit = sources::limit(&args.inventory, environment)?;
    output.data(&inventory.hosts_text(&args.pattern, limit.as_deref())?)?;
    Ok(0)
}
