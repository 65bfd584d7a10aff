//! `topology`: where GPUs, network cards, drives, CPUs and memory of nodes are, and what is wrong with that.

use gpufleet::{
    display::{Role, Style},
    report::fold_names,
};
use gpufleet_protocol::{NodeOp, OpOutcome, OpStatus, tasks::TopologyInfo, topology::Topology};
use gpufleet_topology::{Drawing, Tone, document, text};
use serde_json::{Value, json};

use super::{
    adhoc::{Target, call, exit_code, on_each, request},
    args::{TopologyArgs, TopologyShape},
    environment::Environment,
    error::CommandError,
    output::Output,
};

/// How long reading one node may take after it is connected to, in seconds.
const READ_S: u64 = 30;

/// Why a node gave no topology.
struct Silent {
    unreachable: bool,
    why: String,
}

/// Hosts with one topology, and that topology.
struct Alike {
    hosts: Vec<String>,
    topology: Topology,
}

pub fn topology(args: &TopologyArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target::read_only(&args.pattern, &args.access);
    let read = on_each(&target, environment, output, |link| async move {
        let asked = request(NodeOp::TopologyInfo(TopologyInfo {}), READ_S);
        let outcome = call(link, asked).await.map_err(|(unreachable, why)| Silent { unreachable, why })?;
        understood(outcome).map_err(|why| Silent { unreachable: false, why })
    })?;
    let unreachable = read.iter().any(|(_, read)| read.as_ref().is_err_and(|silent| silent.unreachable));
    let failed = read.iter().any(|(_, read)| match read {
        Ok(topology) => !topology.errors.is_empty(),
        Err(silent) => !silent.unreachable,
    });
    let code = exit_code(failed, unreachable);
    match args.shape {
        TopologyShape::Json => output.data(&documents(&read)?)?,
        TopologyShape::Svg => output.data(&picture(&read)?)?,
        TopologyShape::Text => output.data(&drawn(&read, &output.style))?,
    }
    Ok(code)
}

fn understood(mut outcome: OpOutcome) -> Result<Topology, String> {
    if let OpStatus::Failed { message, .. } = outcome.status {
        return Err(message);
    }
    let data = outcome.data.remove("topology").unwrap_or(Value::Null);
    serde_json::from_value(data).map_err(|error| format!("its answer is not understood: {error}"))
}

fn documents(read: &[(String, Result<Topology, Silent>)]) -> Result<String, CommandError> {
    let nodes = read.iter().map(|(host, read)| match read {
        Ok(topology) => serde_json::to_value(document(host, topology)),
        Err(silent) => Ok(json!({ "node": host, "error": silent.why })),
    });
    let nodes = nodes.collect::<Result<Vec<Value>, _>>().map_err(CommandError::internal)?;
    gpufleet::visible::json_document(&json!({ "version": 1, "nodes": nodes })).map_err(CommandError::internal)
}

/// Groups hosts whose topologies differ in nothing but the serial numbers of their GPUs.
fn alike(read: &[(String, Result<Topology, Silent>)]) -> Vec<Alike> {
    let mut all: Vec<Alike> = Vec::new();
    for (host, topology) in read {
        let Ok(topology) = topology else { continue };
        let topology = topology.clone().of_the_kind();
        match all.iter_mut().find(|known| known.topology == topology) {
            Some(known) => known.hosts.push(host.clone()),
            None => all.push(Alike { hosts: vec![host.clone()], topology }),
        }
    }
    all
}

fn picture(read: &[(String, Result<Topology, Silent>)]) -> Result<String, CommandError> {
    if let Some((host, Err(silent))) = read.iter().find(|(_, read)| read.is_err()) {
        return Err(CommandError::user(format!("{host} gave no topology: {}", silent.why)));
    }
    match alike(read).as_slice() {
        [one] => Ok(Drawing::of(&fold_names(&one.hosts), &one.topology).svg()),
        [] => Err(CommandError::user("no host was selected")),
        many => {
            let groups: Vec<String> = many.iter().map(|one| fold_names(&one.hosts)).collect();
            let error = format!("a picture is of one topology, and these hosts have {}", many.len());
            Err(CommandError::user(error).hint(format!("choose one of {} with -l", groups.join("; "))))
        }
    }
}

fn drawn(read: &[(String, Result<Topology, Silent>)], style: &Style) -> String {
    let paint = |tone: Tone, text: &str| match tone {
        Tone::Plain => text.to_owned(),
        Tone::Heading => style.paint(Role::Strong, text),
        Tone::Muted => style.paint(Role::Muted, text),
        Tone::Gpu => style.paint(Role::Good, text),
        Tone::Wrong => style.paint(Role::Bad, text),
        Tone::Unknown => style.paint(Role::Changed, text),
    };
    let mut parts: Vec<String> = alike(read)
        .iter()
        .map(|one| {
            // In a line for one host; with several hosts Slurm takes the same list.
            let names = fold_names(&one.hosts);
            text(&names, &one.hosts.join(","), &one.topology, paint)
        })
        .collect();
    let silent = read.iter().filter_map(|(host, read)| Some((host, read.as_ref().err()?)));
    parts.extend(silent.map(|(host, silent)| {
        format!("{host}  {}\n", style.paint(Role::Bad, gpufleet::visible::visible(&silent.why)))
    }));
    parts.join("\n")
}
