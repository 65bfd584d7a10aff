//! `check` and `import`: what is to be said about playbooks without any node.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, ValueEnum};
use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics},
    display,
    interpreter::{CachedFiles, check_files},
    inventory::Inventory,
    lint::{self, RULES, Report, Severity},
    migration,
    playbook::{Known, Play},
    template::Dict,
    vault::Keyring,
};
use gpufleet_protocol::Disruption;
use serde_json::{Map, Value, json};

use super::{
    args::InventorySource,
    environment::Environment,
    error::CommandError,
    given_names,
    loading::{known_names, usual_roles_path},
    output::Output,
    sources, vault_passwords,
};

/// Exit code where only `--strict` makes something of what was found.
const DOUBTFUL: u8 = 3;

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 nothing that keeps a run from starting, 1 errors, 3 only warnings and --strict. \
                  `# noqa: RULE` on a line silences a rule there."
)]
pub struct CheckArgs {
    /// Playbooks; what they import is checked with them.
    #[arg(required_unless_present = "list_rules", value_name = "PLAYBOOK", value_hint = clap::ValueHint::FilePath)]
    pub playbooks: Vec<PathBuf>,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: CheckFormat,
    /// Leaves out a rule; may be given several times.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub skip_rule: Vec<String>,
    /// Warnings make exit code 3.
    #[arg(long)]
    pub strict: bool,
    /// Prints the rules with their examples as Markdown.
    #[arg(long)]
    pub list_rules: bool,
    /// What the settings say of where roles lie.
    #[arg(skip)]
    pub roles_path: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// For people.
    #[value(alias = "human")]
    Text,
    /// One document of gpufleet's own.
    Json,
    /// SARIF 2.1.0, which code hosts show beside the lines.
    Sarif,
}

#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// Playbooks of Ansible; their roles and files are looked at too.
    #[arg(required = true, value_name = "PLAYBOOK", value_hint = clap::ValueHint::FilePath)]
    pub playbooks: Vec<PathBuf>,
    /// Shows the tasks that run as they are, too.
    #[arg(short, long)]
    pub all: bool,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ImportFormat,
    /// Writes the playbook to this new file: commands that kinds replace as a whole are replaced, the rest has remarks.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What the settings say of where roles lie.
    #[arg(skip)]
    pub roles_path: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// For people.
    #[value(alias = "human")]
    Text,
    Json,
}

fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

pub fn check(args: &CheckArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    if args.list_rules {
        output.data(&lint::rules_markdown())?;
        return Ok(0);
    }
    let mut skipped = BTreeSet::new();
    for name in &args.skip_rule {
        match lint::rule(name) {
            Some(rule) if rule.severity == Severity::Error => {
                return Err(CommandError::user(format!("`{name}` is an error and cannot be left out")));
            }
            Some(rule) => skipped.insert(rule.name),
            None => {
                let known = RULES.iter().map(|rule| rule.name);
                let error = CommandError::user(format!("no rule is called `{name}`"));
                return Err(match gpufleet::diagnostic::did_you_mean(name, known) {
                    Some(near) => error.hint(near),
                    None => error.hint("`gpufleet check --list-rules` lists them all"),
                });
            }
        };
    }
    let keyring = vault_passwords::keyring(&args.inventory.vault, environment)?;
    let roles = match args.roles_path.is_empty() {
        true => usual_roles_path(environment),
        false => args.roles_path.clone(),
    };
    let extra = sources::extra_vars(&args.extra_vars, &keyring)?;
    let known = Arc::new(Dict::trusted(&extra));
    let mut report = lint::check(&names(&args.playbooks), &sources::Disk, &keyring, &roles, &known);
    if let Some(program) = &report.program {
        let files = CachedFiles::with_keyring(sources::Disk, Arc::clone(&keyring));
        let missing = check_files(program, &files);
        report.add(missing);
    }
    let with_inventory = !args.inventory.inventory.is_empty();
    if with_inventory {
        inventory(args, &keyring, extra, environment, &mut report)?;
    }
    report.skip(&skipped);
    match args.format {
        CheckFormat::Text => {
            output.data(&report.text(output.style.color))?;
            output.status(&report.summary());
            if !with_inventory {
                output.status(
                    "Whether every variable is defined was not checked: name the inventory with -i for that.",
                );
            }
        }
        CheckFormat::Json => output.data(&pretty(&document(&report, with_inventory))?)?,
        CheckFormat::Sarif => output.data(&pretty(&lint::sarif(&report))?)?,
    }
    Ok(match (report.count(Severity::Error), report.count(Severity::Warning)) {
        (0, 0) => 0,
        (0, _) if args.strict => DOUBTFUL,
        (0, _) => 0,
        _ => 1,
    })
}

fn pretty(value: &Value) -> Result<String, CommandError> {
    gpufleet::visible::json_document(value).map_err(CommandError::internal)
}

fn document(report: &Report, with_inventory: bool) -> Value {
    json!({
        "format": 1,
        "files": report.files,
        "variables_checked": with_inventory && report.program.is_some(),
        "errors": report.count(Severity::Error),
        "warnings": report.count(Severity::Warning),
        "notes": report.count(Severity::Note),
        "findings": report.findings.iter().map(lint::Finding::to_json).collect::<Vec<_>>(),
    })
}

/// What only an inventory can tell: variables, hosts of the plays, budgets.
fn inventory(
    args: &CheckArgs,
    keyring: &Arc<Keyring>,
    extra: Map<String, Value>,
    environment: &Environment,
    report: &mut Report,
) -> Result<(), CommandError> {
    let folder = args.playbooks.first().and_then(|playbook| playbook.parent()).map(Path::to_path_buf);
    let around = sources::Around {
        playbook_dir: folder
            .map(|folder| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }),
        extra_vars: extra.clone(),
        keyring: Arc::clone(keyring),
        ..sources::Around::default()
    };
    let mut inventory = match sources::inventory_in(&args.inventory, around, environment) {
        Ok(inventory) => inventory,
        Err(CommandError::Input(errors)) => {
            report.add(errors);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    report.add(inventory.suspects());
    let limit = sources::limit(&args.inventory, environment)?;
    let Some(program) = report.program.clone() else { return Ok(()) };
    let mut errors = Diagnostics::new();
    let mut hosts: Vec<String> = Vec::new();
    let extra_dict = Arc::new(Dict::trusted(&extra));
    for play in &program.plays {
        let Some(pattern) = errors.absorb(play.host_pattern(&extra_dict)) else { continue };
        let selected: Option<Vec<String>> = errors
            .absorb(inventory.select(&pattern, limit.as_deref()))
            .map(|hosts| hosts.iter().map(ToString::to_string).collect());
        let Some(selected) = selected else { continue };
        errors.absorb(play.budget(selected.len(), limit.is_some()));
        let here = |host: &&String| is_here(play, &inventory, host, &environment.hostname);
        if let Some(host) = selected.iter().find(here).filter(|_| play.disruption > Disruption::Live) {
            errors.push(own_machine(play, host));
        }
        let fresh: Vec<String> = selected.into_iter().filter(|host| !hosts.contains(host)).collect();
        hosts.extend(fresh);
    }
    errors.absorb(inventory.unlock(&hosts));
    let says = |host: &String| {
        let Some(vars) = inventory.host_vars(host) else { return false };
        let user = |name: &str| vars.get(name).and_then(|value| value.as_str());
        vars.get("ansible_become").is_some()
            || ["ansible_user", "ansible_ssh_user"].iter().any(|name| user(name) == Some("root"))
    };
    if hosts.iter().any(says) {
        report.skip(&BTreeSet::from(["gpu-without-root"]));
    }
    errors.append(program.check_logins(|host| inventory.host_vars(host).is_some()));
    let files = CachedFiles::with_keyring(sources::Disk, Arc::clone(keyring));
    errors.append(given_names::misspelt(&args.extra_vars, &program, &inventory, &hosts, &extra, &files));
    report.add(errors);
    report.check_variables(&Known { variables: known_names(&inventory, &hosts, &extra) });
    Ok(())
}

/// Whether a host is the machine that gpufleet runs on, as far as the inventory and the play tell.
fn is_here(play: &Play, inventory: &Inventory, host: &str, own_name: &str) -> bool {
    let Some(vars) = inventory.host_vars(host) else { return Inventory::is_this_machine(host) };
    let said = vars.get("ansible_connection").and_then(Value::as_str);
    let connection = said.or_else(|| play.connection.as_ref()?.as_str());
    host == own_name || matches!(connection, Some("local" | "ansible.builtin.local"))
}

/// Says before the run what the run and its plan refuse.
fn own_machine(play: &Play, host: &str) -> Diagnostic {
    let what = match play.disruption {
        Disruption::Reboot => "may reboot",
        _ => "may disturb",
    };
    let said = format!("`{}` {what} {host}, the machine that gpufleet itself runs on", play.name);
    let found =
        Diagnostic::warning(said).note("a run and its plan hold it there before anything is changed").help(
            "run it from another machine over SSH, or leave out what needs it here and do that part by hand",
        );
    match play.hosts.first() {
        Some((_, span)) => found.at(span),
        None => found,
    }
}

/// Writes the one playbook as it would be here.
fn write_imported(
    args: &ImportArgs,
    file: &Path,
    survey: &migration::Survey,
    output: &Output,
) -> Result<(), CommandError> {
    let [playbook] = args.playbooks.as_slice() else {
        return Err(CommandError::user("`-o` writes one playbook, and several are given"));
    };
    let text = fs::read_to_string(playbook)
        .map_err(|error| CommandError::user(format!("cannot read {}: {error}", playbook.display())))?;
    let found = migration::rewritten(&text, &playbook.display().to_string(), survey);
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot write {}: {error}", file.display()));
    // Why a new one: nothing that somebody wrote is overwritten, the playbook itself least of all.
    let mut new = fs::OpenOptions::new().write(true).create_new(true).open(file).map_err(failed)?;
    new.write_all(found.text.as_bytes()).map_err(failed)?;
    output.status(&format!(
        "wrote {}: {} replaced, {} marked with `# gpufleet:`; files that it includes are not written",
        file.display(),
        display::count(found.replaced, "task"),
        found.marked
    ));
    Ok(())
}

pub fn import(args: &ImportArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    for playbook in &args.playbooks {
        if let Err(error) = fs::metadata(playbook) {
            return Err(CommandError::user(format!("cannot read {}: {error}", playbook.display())));
        }
    }
    let roles = match args.roles_path.is_empty() {
        true => usual_roles_path(environment),
        false => args.roles_path.clone(),
    };
    let survey = migration::survey(&names(&args.playbooks), &sources::Disk, &Arc::default(), &roles);
    if let Some(file) = &args.output {
        write_imported(args, file, &survey, output)?;
    }
    match args.format {
        ImportFormat::Text => output.data(&migration::report_text(&survey, args.all))?,
        ImportFormat::Json => {
            output.data(&gpufleet::visible::json_document(&survey).map_err(CommandError::internal)?)?
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Cli, Command};

    /// The exit code of `gpufleet check` on one playbook.
    fn code(text: &str, options: &[&str]) -> u8 {
        let folder = tempfile::tempdir().unwrap();
        let playbook = folder.path().join("play.yml");
        fs::write(&playbook, text).unwrap();
        let words = ["gpufleet", "--quiet", "check"].into_iter().map(ToOwned::to_owned);
        let words = words
            .chain([playbook.display().to_string()])
            .chain(options.iter().map(|word| (*word).to_owned()));
        let cli = Cli::try_parse_from(words).unwrap();
        let environment = Environment::read();
        let output = Output::new(&cli.output, super::super::args::ColorChoice::Never, &environment);
        let Command::Check(args) = cli.command else { panic!("another command") };
        check(&args, &environment, &output).unwrap_or_else(|error| error.exit_code())
    }

    #[test]
    fn exit_codes_are_as_documented() {
        let fine = "- hosts: all\n  tasks:\n    - name: a\n      debug: {msg: hi}\n";
        let doubtful = "- hosts: all\n  tasks:\n    - name: a\n      command: uptime\n";
        let wrong = "- hosts: all\n  tasks:\n    - comand: uptime\n";
        assert_eq!((code(fine, &[]), code(fine, &["--strict"])), (0, 0));
        assert_eq!((code(doubtful, &[]), code(doubtful, &["--strict"])), (0, 3));
        assert_eq!(code(doubtful, &["--strict", "--skip-rule", "no-changed-when"]), 0);
        assert_eq!((code(wrong, &[]), code(wrong, &["--format", "sarif"])), (1, 1));
        assert_eq!(code(wrong, &["--skip-rule", "invalid"]), 1);
        assert_eq!(code(fine, &["--skip-rule", "no-such-rule"]), 1);
    }

    #[test]
    fn a_play_that_may_disturb_the_machine_of_gpufleet_itself_is_told() {
        let play = |task: &str| {
            format!("- hosts: localhost\n  gather_facts: false\n  tasks:\n    - name: a\n      {task}\n")
        };
        let reboots = play("reboot: {when: required}");
        let strict = |text: &str, inventory: &str| code(text, &["--strict", "-i", inventory]);
        assert_eq!(strict(&reboots, "gpu001,"), 3);
        assert_eq!(strict(&play("service: {name: kubelet, state: stopped}"), "gpu001,"), 3);
        assert_eq!(strict(&play("debug: {msg: hi}"), "gpu001,"), 0);
        assert_eq!(strict(&reboots.replace("localhost", "all"), "gpu001,"), 0);
        let local = reboots.replace("localhost", "all\n  connection: local");
        assert_eq!(strict(&local, "gpu001,"), 3);
    }

    #[test]
    fn an_inventory_tells_of_variables_hosts_and_files() {
        let variable = "- hosts: all\n  tasks:\n    - name: a\n      debug: {msg: '{{ rack }}'}\n";
        assert_eq!((code(variable, &[]), code(variable, &["-i", "gpu001,"])), (0, 1));
        assert_eq!(code(variable, &["-i", "gpu001,", "-e", "rack=r1"]), 0);
        let host = "- hosts: nowhere\n  tasks:\n    - name: a\n      debug: {msg: hi}\n";
        assert_eq!((code(host, &[]), code(host, &["-i", "gpu001,"])), (0, 1));
        let file = "- hosts: all\n  tasks:\n    - name: a\n      copy: {src: nothing.conf, dest: /etc/x}\n";
        assert_eq!(code(file, &[]), 1, "a file that is not there needs no inventory");
    }
}
