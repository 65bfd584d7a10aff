//! `status`: what the GPUs of nodes do at this moment, once.

use std::{sync::Arc, time::Duration};

use csv::{QuoteStyle, Terminator, WriterBuilder};
use futures::{StreamExt as _, stream};
use gpufleet::{
    display::{Role, Style},
    engine::{ConnectFailure, Connector, Link},
    inventory::Inventory,
    report::{fold_names, inert},
};
use gpufleet_protocol::{NodeOp, OpStatus, op::GpuStatusRequest, status::GpuStatus};
use gpufleet_status::{
    Chosen, Column, GPU_COLUMNS, Heard, Line, NODE_COLUMNS, NoColumn, NodeReading, NodeRow, Row, State,
    Table, Tone, Totals, Wanted, document, free_by_group, notes, rows,
};
use serde_json::Value;

use super::{
    adhoc::{Reach, Target, exit_code, reach, request},
    args::{StatusArgs, StatusCommand},
    engine,
    environment::{self, Environment},
    error::CommandError,
    output::Output,
    status_watch::watch,
};

/// How long reading one node may take after it is connected to, in seconds. Without persistence the driver first starts
/// every GPU.
pub(super) const READ_S: u64 = 20;
/// After this time a person is told which nodes are waited for.
const PATIENCE: Duration = Duration::from_secs(4);
/// Groups whose free GPUs are listed.
const GROUPS: usize = 12;

/// What is shown of each line.
enum Shape {
    Columns(String),
    Usual,
    Wide,
    Json,
    Csv,
}

impl Shape {
    fn of(text: Option<&str>) -> Self {
        match text {
            None => Self::Usual,
            Some("wide") => Self::Wide,
            Some("json") => Self::Json,
            Some("csv") => Self::Csv,
            Some(list) => Self::Columns(list.to_owned()),
        }
    }
}

pub fn gpu_help() -> String {
    help("gpu", "node,gpu,use,mem,state", &Column::help(GPU_COLUMNS))
}

pub fn node_help() -> String {
    help("node", "node,gpus,free,state", &Column::help(NODE_COLUMNS))
}

fn help(what: &str, list: &str, columns: &str) -> String {
    format!(
        "Columns:\n{columns}\nExamples:\n  gpufleet status {what} -i inventory/\n  \
         gpufleet status {what} -i inventory/ -l rack3 -o {list} --sort-by use\n  \
         gpufleet status {what} -i inventory/ --watch\n\n\
         Exit codes: 0 all were read, 2 GPUs of a node could not be read, 4 only unreachable nodes."
    )
}

fn no_column<R>(all: &'static [Column<R>], error: &NoColumn) -> CommandError {
    let names: Vec<&str> = all.iter().map(|column| column.name).collect();
    CommandError::user(error)
        .hint(format!("columns are {}; `-o` also takes wide, json and csv", names.join(", ")))
}

pub fn status(what: &StatusCommand, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    match what {
        StatusCommand::Gpu(args) => show::<Row>(args, environment, output),
        StatusCommand::Node(args) => show::<NodeRow>(args, environment, output),
    }
}

fn show<R: Line>(args: &StatusArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let shape = Shape::of(args.shape.as_deref());
    // Before any node is contacted.
    let wrong = |error: NoColumn| no_column(R::COLUMNS, &error);
    let chosen = match &shape {
        Shape::Columns(list) => Some(Column::listed(R::COLUMNS, list).map_err(wrong)?),
        _ => None,
    };
    let by = args.sort_by.as_deref().map(|name| Column::find(R::COLUMNS, name)).transpose().map_err(wrong)?;
    let Some(seconds) = args.watch else { return once(args, &shape, chosen, by, environment, output) };
    if matches!(shape, Shape::Json | Shape::Csv) {
        let error = "`--watch` shows a table, and `-o json` and `-o csv` are for programs";
        return Err(CommandError::user(error).hint("leave one of them out"));
    }
    let wanted = Wanted::<R> {
        columns: chosen,
        wide: matches!(shape, Shape::Wide),
        sort_by: by,
        reverse: args.reverse,
        interval: Duration::from_secs(seconds.into()),
        color: output.style.color,
    };
    watch(args, wanted, environment, output)
}

fn once<R: Line>(
    args: &StatusArgs,
    shape: &Shape,
    chosen: Option<Chosen<R>>,
    by: Option<&'static Column<R>>,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let target = target(args);
    let found = reach(&target, environment, output)?;
    // A document is read by other programs, such as `mig fit`.
    let asked = GpuStatusRequest { window_s: args.window, profiles: matches!(shape, Shape::Json) };
    let (readings, unreachable) = read(&target, &found, asked, output)?;
    let by_node: Vec<Vec<Row>> = readings.iter().map(rows).collect();
    let is_heard = |reading: &NodeReading| !matches!(reading.heard, Heard::Failed(_));
    let failed = readings
        .iter()
        .zip(&by_node)
        .any(|(reading, rows)| is_heard(reading) && rows.iter().any(|row| row.state == State::Unknown));
    let silent = readings.iter().filter(|reading| !is_heard(reading)).count();
    let code = exit_code(failed || silent > unreachable, unreachable > 0);
    if matches!(shape, Shape::Json) {
        let text = gpufleet::visible::json_document(&document(&readings)).map_err(CommandError::internal)?;
        output.data(&text)?;
        return Ok(code);
    }
    let mut lines: Vec<R> = by_node.iter().flat_map(|rows| R::of(rows)).collect();
    if let Some(column) = by {
        let key = column.key;
        lines.sort_by(|one, other| key(one).order(&key(other), args.reverse));
    }
    let wide = matches!(shape, Shape::Wide | Shape::Csv);
    let columns =
        chosen.unwrap_or_else(|| Column::usual(R::COLUMNS, &lines.iter().collect::<Vec<_>>(), wide));
    let table = Table::new(&columns, lines);
    if matches!(shape, Shape::Csv) {
        output.data(&csv(&table).map_err(CommandError::internal)?)?;
        return Ok(code);
    }
    let style = &output.style;
    // Somebody who wants all columns has a way to see them.
    let width = if wide { Style::UNCUT } else { environment::table_width() };
    let mut text = table.text(width, |tone, text| paint(style, tone, text));
    text.push_str(&footer(by_node.iter().flatten(), readings.len(), style));
    let left_out = table.left_out(width);
    if !left_out.is_empty() {
        let hint = format!("no room here for {}; `-o wide` shows all", left_out.join(", "));
        text.push_str(&format!("{}\n", style.paint(Role::Muted, hint)));
    }
    output.data(&text)?;
    Ok(code)
}

fn paint(style: &Style, tone: Tone, text: &str) -> String {
    let role = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Muted => Role::Muted,
        Tone::Good => Role::Good,
        Tone::Busy => Role::Busy,
        Tone::Warning => Role::Changed,
        Tone::Bad => Role::Bad,
    };
    style.paint(role, text)
}

/// What all lines come to, what is free, and what needs words.
fn footer<'a>(gpus: impl Iterator<Item = &'a Row> + Clone, nodes: usize, style: &Style) -> String {
    let totals = Totals::of(gpus.clone(), nodes);
    let mut text = format!("\n{}\n", totals.text());
    text.push_str(&format!("free: {}\n", style.paint(Role::Good, totals.free.text())));
    let groups = free_by_group(gpus.clone());
    let widest = groups.iter().take(GROUPS).map(|(group, _)| group.chars().count()).max().unwrap_or(0);
    for (group, free) in groups.iter().take(GROUPS) {
        text.push_str(&format!("  {group:widest$}  {}\n", free.text()));
    }
    if groups.len() > GROUPS {
        text.push_str(&format!("  … and {} more groups\n", groups.len() - GROUPS));
    }
    for note in notes(gpus) {
        text.push_str(&format!("{}\n", style.paint(Role::Changed, note)));
    }
    text
}

/// Returns the table as RFC 4180 describes it.
fn csv(table: &Table) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut writer = WriterBuilder::new()
        .quote_style(QuoteStyle::Necessary)
        .terminator(Terminator::CRLF)
        .from_writer(Vec::new());
    for record in table.records() {
        let cells = record.iter().map(|cell| if *cell == "-" { String::new() } else { inert(cell) });
        writer.write_record(cells)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

pub(super) fn target(args: &StatusArgs) -> Target<'_> {
    Target::read_only(&args.pattern, &args.access)
}

/// Returns the groups of a host.
pub(super) fn groups_of(inventory: &Inventory, host: &str) -> Arc<[String]> {
    let groups = inventory.groups_of(host).into_iter();
    groups.filter(|group| *group != "ungrouped").map(str::to_owned).collect()
}

fn far_away() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(3600)
}

/// Reads every node, `forks` at once; in inventory order, with the number of those that were not reached.
pub(super) fn read(
    target: &Target<'_>,
    reach: &Reach,
    asked: GpuStatusRequest,
    output: &Output,
) -> Result<(Vec<NodeReading>, usize), CommandError> {
    let Reach { fleet, hosts, inventory } = reach;
    let purpose = target.purpose;
    let mut heard: Vec<Option<Result<Heard, String>>> = vec![None; hosts.len()];
    engine::block_on(async {
        // Unordered, because a node that hangs must not keep the next ones from their turn.
        let mut answers = stream::iter(hosts.iter().enumerate())
            .map(|(at, host)| async move {
                let link = fleet.connect(host, purpose).await;
                let heard = match &link {
                    Ok(link) => Ok(ask(link.as_ref(), asked).await.unwrap_or_else(Heard::Failed)),
                    Err(error) => Err(ConnectFailure::to_string(error)),
                };
                if let Ok(link) = link {
                    link.close().await;
                }
                (at, heard)
            })
            .buffer_unordered(target.connection.forks());
        let mut patience = Some(tokio::time::Instant::now() + PATIENCE);
        loop {
            let next = tokio::time::timeout_at(patience.unwrap_or_else(far_away), answers.next()).await;
            match next {
                Ok(Some((at, answer))) => heard.splice(at..=at, [Some(answer)]).for_each(drop),
                Ok(None) => break,
                Err(_) => {
                    patience = None;
                    let missing = hosts.iter().zip(&heard).filter(|(_, heard)| heard.is_none());
                    output.status(&format!("waiting for {}", fold_names(missing.map(|(host, _)| host))));
                }
            }
        }
    })?;
    let unreachable = heard.iter().filter(|heard| !matches!(heard, Some(Ok(_)))).count();
    let readings = hosts.iter().zip(heard).map(|(host, heard)| NodeReading {
        node: host.as_str().into(),
        groups: groups_of(inventory, host),
        heard: match heard {
            Some(heard) => heard.unwrap_or_else(Heard::Failed),
            None => Heard::Nothing,
        },
    });
    Ok((readings.collect(), unreachable))
}

/// Reads the GPUs of a node.
///
/// # Errors
/// Why it did not answer at all.
pub(super) async fn ask(link: &dyn Link, asked: GpuStatusRequest) -> Result<Heard, String> {
    let asked = request(NodeOp::GpuStatus(asked), READ_S);
    let call = link.call(asked, Vec::new(), Box::new(|_| {}));
    // The helper keeps the time too; this is for a node that falls silent.
    let outcome = tokio::time::timeout(Duration::from_secs(READ_S + 2), call).await;
    let mut outcome = match outcome {
        Ok(outcome) => outcome.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("no answer within {READ_S} s")),
    };
    if let OpStatus::Failed { message, .. } = outcome.status {
        return Ok(Heard::Failed(message));
    }
    let status = outcome.data.remove("gpu_status").unwrap_or(Value::Null);
    Ok(match serde_json::from_value::<GpuStatus>(status) {
        Ok(status) => Heard::Status(Box::new(status)),
        Err(error) => Heard::Failed(format!("its answer is not understood: {error}")),
    })
}
