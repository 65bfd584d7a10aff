//! `keep`: what nodes assert at each boot, and what came of it.

use gpufleet::{
    display::{self, Role},
    visible::visible,
};
use gpufleet_protocol::{NodeOp, OpStatus, keep::KeptReport, op::KeptStatus};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::{
    adhoc::{self, Target, exit_code, on_each, request},
    args::{ExecArgs, Format, KeepCommand, KeepStatusArgs},
    environment::Environment,
    error::CommandError,
    output::Output,
};

/// How long reading one node may take, in seconds.
const READ_S: u64 = 60;

pub fn keep(command: KeepCommand, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    match command {
        KeepCommand::Status(args) => status(&args, environment, output),
        KeepCommand::Remove(args) => {
            let args = ExecArgs {
                pattern: args.pattern,
                module_name: Some("gpu_keep".to_owned()),
                module_args: Some("state=absent".to_owned()),
                extra_vars: args.extra_vars,
                background: None,
                poll: None,
                check: args.check,
                diff: false,
                yes: true,
                list_hosts: false,
                shell: false,
                inventory: args.inventory,
                escalation: args.escalation,
                one_line: true,
                format: args.format,
                argv: Vec::new(),
                connection: args.connection,
            };
            adhoc::exec(args, environment, output)
        }
    }
}

/// What one node says; `None` if it keeps nothing.
type Said = Result<Option<KeptReport>, String>;

fn status(args: &KeepStatusArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target::read_only(&args.pattern, &args.access);
    let said = on_each(&target, environment, output, |link| async move {
        let outcome = adhoc::call(link, request(NodeOp::KeptStatus(KeptStatus::default()), READ_S)).await;
        let mut outcome = outcome.map_err(|(_, why)| why)?;
        match (outcome.data.remove("kept"), outcome.status) {
            (Some(kept), _) => serde_json::from_value(kept).map(Some).map_err(|error| error.to_string()),
            (None, OpStatus::Ok) => Ok(None),
            (None, OpStatus::Failed { message, .. }) => Err(message),
            (None, _) => Err("the node did not say".to_owned()),
        }
    })?;
    let unreachable = said.iter().any(|(_, said): &(String, Said)| said.is_err());
    let wrong = said.iter().any(|(_, said)| matches!(said, Ok(Some(kept)) if !kept.concerns().is_empty()));
    let text = match args.format.unwrap_or_default() {
        Format::Human | Format::Ansible => table(&said, output),
        Format::Json => {
            let all: Vec<Value> = said.iter().map(document).collect();
            gpufleet::visible::json_document(&all).map_err(CommandError::internal)?
        }
        Format::Jsonl => said
            .iter()
            .map(|said| gpufleet::visible::json_line(&document(said)).map_err(CommandError::internal))
            .collect::<Result<_, _>>()?,
    };
    output.data(&text)?;
    Ok(exit_code(wrong, unreachable))
}

fn document((host, said): &(String, Said)) -> Value {
    match said {
        Ok(kept) => json!({"host": host, "kept": kept}),
        Err(error) => json!({"host": host, "error": error}),
    }
}

fn table(said: &[(String, Said)], output: &Output) -> String {
    let width = said.iter().map(|(host, _)| host.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (host, said) in said {
        let line = match said {
            Err(why) => output.style.paint(Role::Bad, visible(why)),
            Ok(None) => output.style.paint(Role::Muted, "keeps nothing"),
            Ok(Some(kept)) => {
                let problems = kept.concerns();
                let since =
                    i64::try_from(kept.serial).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
                let since = since.map_or_else(String::new, |since| {
                    format!(" since {}", display::moment(since, &TimeZone::system()))
                });
                let tasks = display::count(kept.tasks, "task");
                let held = match (kept.holds, kept.open) {
                    (true, true) => ", holds units at boot, open now",
                    (true, false) => ", holds units now",
                    (false, _) => "",
                };
                let boots = match kept.boots.last() {
                    None => ", no boot since".to_owned(),
                    Some(boot) if problems.is_empty() => {
                        format!(", asserted at the last boot in {:.1} s", boot.ms as f64 / 1000.0)
                    }
                    Some(_) => String::new(),
                };
                let mut line = format!("keeps {tasks}{since}{held}{boots}");
                for problem in &problems {
                    line.push_str(&format!(
                        "\n{:width$}  {}",
                        "",
                        output.style.paint(Role::Bad, visible(problem))
                    ));
                }
                line
            }
        };
        text.push_str(&format!("{host:width$}  {line}\n"));
    }
    text
}
