//! The binary's side: arguments, the environment, the terminal, and one file a command.
//!
//! Data goes to standard output, everything else to standard error; only [`output`] prints.

mod adhoc;
mod args;
mod audit;
mod baseline;
mod check;
mod command_line;
mod complete;
mod configuration;
mod doc;
mod engine;
mod environment;
mod error;
mod exec;
mod experience;
mod fleet;
mod given_names;
mod groups;
mod guide;
mod history;
mod inputs;
mod inventory;
mod keep;
mod keep_key;
mod kept_machines;
mod kept_runs;
mod late_files;
mod left_drained;
mod listing;
mod loading;
mod locks;
mod machine;
mod memory;
mod mig;
mod mig_fit;
mod output;
mod prompt;
mod report;
mod resume;
mod secret_files;
mod serve;
mod served_runs;
mod sinks;
mod sources;
mod status;
mod status_watch;
mod store;
mod topology;
mod trust;
mod vault;
mod vault_edit;
mod vault_passwords;
mod watch;

use self::{
    args::{ColorChoice, Command},
    configuration::Configuration,
    environment::Environment,
    error::CommandError,
    output::Output,
};

/// Parses the command line, carries it out and returns the exit code.
pub fn main() -> u8 {
    let cli = match groups::parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    let mut environment = Environment::read();
    output::log(cli.output.verbose, cli.output.color, &environment);
    memory::hide();
    memory::give_back();
    // Without nodes `mig` has no settings, and its `--config` is a configuration of mig-parted.
    let is_offline =
        matches!(&cli.command, Command::Mig(command) if !matches!(command, args::MigCommand::Fit(_)));
    let settings = cli.output.config.as_deref().filter(|_| !is_offline);
    let (output, configuration) = match Configuration::load(settings, &environment) {
        Ok(configuration) => {
            let color = configuration.color(cli.output.color);
            (Output::new(&cli.output, color, &environment), Ok(configuration))
        }
        Err(error) => {
            let color = cli.output.color.unwrap_or(ColorChoice::Auto);
            (Output::new(&cli.output, color, &environment), Err(error))
        }
    };
    let mut command = cli.command;
    let configuration = match configuration {
        // Why: a mistake in settings is no reason not to show help, a report, or to stop a run.
        Err(_) if !Configuration::concerns(&command) => Ok(Configuration::default()),
        configuration => configuration,
    };
    if let Ok(configuration) = &configuration {
        environment.kept_runs = configuration.kept_runs();
    }
    let result = configuration.and_then(|configuration| {
        configuration.apply(&mut command);
        configuration.announce(&output);
        carry_out(command, &configuration, &environment, &output)
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            output.error(&error);
            error.exit_code()
        }
    }
}

fn carry_out(
    command: Command,
    configuration: &Configuration,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    match command {
        Command::Run(args) => engine::run(&args, environment, output),
        Command::Plan(args) => engine::plan(&args, environment, output),
        Command::Audit(args) => audit::audit(&args, environment, output),
        Command::Baseline(command) => baseline::baseline(&command, environment, output),
        Command::Watch(args) => watch::watch(&args, environment, output),
        Command::Facts(args) => adhoc::facts(args, environment, output),
        Command::Topology(args) => topology::topology(&args, environment, output),
        Command::Status(call) => status::status(&call.into_command(), environment, output),
        Command::Exec(args) => adhoc::exec(*args, environment, output),
        Command::Clean(args) => adhoc::clean(args, environment, output),
        Command::Keep(command) => keep::keep(command, environment, output),
        Command::Inventory(args) => inventory::inventory(&args, environment, output),
        Command::Hosts(args) => inventory::hosts(&args, environment, output),
        Command::Resume(args) => resume::resume(&args, environment, output),
        Command::Abort(args) => resume::abort(&args, environment, output),
        Command::Locks(args) => locks::locks(&args, environment, output),
        Command::Adopt(args) => locks::adopt(*args, environment, output),
        Command::Pause(args) => resume::pause(&args, environment, output),
        Command::Runs(args) => history::runs(&args, environment, output),
        Command::Report(args) => report::report(&args, environment, output),
        Command::Serve(args) => serve::serve(&args, environment, output),
        Command::History(args) => store::history(&args, environment, output),
        Command::Check(args) => check::check(&args, environment, output),
        Command::Import(args) => check::import(&args, environment, output),
        Command::Schema(args) => doc::schema(&args, output),
        Command::Man(args) => doc::man(&args, output),
        Command::Config(args) => configuration::config(&args, configuration, output),
        Command::Mig(command) => mig::mig(&command, environment, output),
        Command::Doc(args) => doc::doc(&args, output),
        Command::Vault(args) => vault::vault(&args, environment, output),
        Command::Complete(args) => complete::complete(&args, configuration, environment, output),
        Command::Completion { shell } => doc::completion(shell, output),
    }
}
