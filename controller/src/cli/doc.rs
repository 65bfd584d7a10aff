//! `doc` and `completion`.

use clap::CommandFactory;
use gpufleet::{diagnostic, reference};
use gpufleet_protocol::tasks;

use super::{
    args::{Cli, DocArgs},
    error::CommandError,
    output::Output,
};

pub fn doc(args: &DocArgs, output: &Output) -> Result<u8, CommandError> {
    let Some(name) = &args.kind else {
        output.data(&if args.all { reference::kinds_markdown() } else { reference::kinds_list() })?;
        return Ok(0);
    };
    let Some(kind) = tasks::find(name) else {
        let known = tasks::KINDS.iter().map(|kind| kind.name);
        let error = CommandError::user(format!("no task kind `{name}`"));
        return Err(match diagnostic::suggest(name, known) {
            Some(close) => error.hint(format!("did you mean `{close}`?")),
            None => error.hint("`gpufleet doc` lists them all"),
        });
    };
    let text = if args.schema {
        serde_json::to_string_pretty(&(kind.schema)()).map_err(CommandError::internal)?
    } else {
        reference::kind_text(kind.name).unwrap_or_default()
    };
    output.data(&text)?;
    Ok(0)
}

pub fn completion(shell: clap_complete::Shell, output: &Output) -> Result<u8, CommandError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gpufleet", &mut text);
    output.data(&String::from_utf8_lossy(&text))?;
    Ok(0)
}
