//! `inventory` and `hosts`.

use gpufleet::inventory::Inventory;

use super::{
    args::{HostsArgs, InventoryArgs, InventorySource},
    error::CommandError,
    output::Output,
    sources,
};

fn load(source: &InventorySource) -> Result<Inventory, CommandError> {
    sources::inventory(source, None)
}

pub fn inventory(args: &InventoryArgs, output: &Output) -> Result<u8, CommandError> {
    let inventory = load(&args.inventory)?;
    let text = if let Some(host) = &args.host {
        inventory.host_text(host)?
    } else if let Some(group) = &args.graph {
        inventory.graph_text(group, args.vars)?
    } else {
        inventory.list_text(args.inventory.limit.as_deref())?
    };
    output.data(&text)?;
    Ok(0)
}

pub fn hosts(args: &HostsArgs, output: &Output) -> Result<u8, CommandError> {
    let inventory = load(&args.inventory)?;
    output.data(&inventory.hosts_text(&args.pattern, args.inventory.limit.as_deref())?)?;
    Ok(0)
}
