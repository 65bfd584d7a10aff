//! The binary's side: arguments, the environment, the terminal, and one file a command.
//!
//! Data goes to standard output, everything else to standard error; nobody but [`output`] prints.

mod adhoc;
mod args;
mod contexts;
mod doc;
mod engine;
mod environment;
mod error;
mod experience;
mod fleet;
mod history;
mod inventory;
mod locks;
mod machine;
mod output;
mod prompt;
mod resume;
mod schedulers;
mod sinks;
mod sources;
mod vault;
mod vault_passwords;

use clap::Parser;

use self::{args::Command, environment::Environment, output::Output};

/// Parses the command line, carries it out and returns the exit code.
pub fn main() -> u8 {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    let environment = Environment::read();
    let output = Output::new(&cli.output, &environment);
    output::log(cli.output.verbose);
    let result = match cli.command {
        Command::Run(args) => engine::run(args, &environment, &output),
        Command::Plan(args) => engine::plan(args, &environment, &output),
        Command::Audit(args) => engine::audit(args, &environment, &output),
        Command::Facts(args) => adhoc::facts(args, &environment, &output),
        Command::Exec(args) => adhoc::exec(args, &environment, &output),
        Command::Clean(args) => adhoc::clean(args, &environment, &output),
        Command::Inventory(args) => inventory::inventory(&args, &environment, &output),
        Command::Hosts(args) => inventory::hosts(&args, &environment, &output),
        Command::Resume(args) => resume::resume(&args, &environment, &output),
        Command::Abort(args) => resume::abort(&args, &environment, &output),
        Command::Locks(args) => locks::locks(&args, &environment, &output),
        Command::Adopt(args) => locks::adopt(*args, &environment, &output),
        Command::Pause(args) => resume::pause(&args, &environment, &output),
        Command::Runs(args) => history::runs(&args, &environment, &output),
        Command::Report(args) => history::report(&args, &environment, &output),
        Command::Doc(args) => doc::doc(&args, &output),
        Command::Vault(args) => vault::vault(&args, &environment, &output),
        Command::Completion { shell } => doc::completion(shell, &output),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output.error(&error);
            error.exit_code()
        }
    }
}
