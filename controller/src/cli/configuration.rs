//! Which settings hold: finds the files, reads the environment, fills in what the command line does not say, and
//! `gpufleet config`.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use gpufleet::{
    display::{Role, Style},
    settings::{File, KEYS, Origin, Settings, Sources},
};
use serde_json::{Map, Value, json};

use super::{
    args::{
        AgeRecipients, ColorChoice, Command, ConfigArgs, Connection, ConnectionKind, Documents, EncryptWith,
        Escalation, Format, InventorySource, KeepCommand, MigCommand, NodeAccess, TaskChoice, VaultCommand,
        VaultSource,
    },
    environment::Environment,
    error::CommandError,
    kept_runs::KeptRuns,
    output::Output,
    trust::{self, Care, Trust},
};

/// The settings of this call and what became of them.
#[derive(Default)]
pub struct Configuration {
    pub settings: Settings,
    toml: Option<String>,
    ansible_cfg: Option<String>,
    /// Things a person should know about how they were found.
    warnings: Vec<String>,
    /// Names of the settings that filled something in.
    used: RefCell<Vec<&'static str>>,
}

struct Found {
    path: String,
    text: String,
}

/// # Errors
/// A file that cannot be read, or that someone else could have written.
fn read(path: PathBuf, warnings: &mut Vec<String>) -> Result<Found, CommandError> {
    let shown = path.display().to_string();
    let mut trust = Trust::of_this_process();
    trust.demand(&path, "the settings", Care::Shared)?;
    // Why no error: a team may share its settings, and has to know that it does.
    warnings.extend(trust::warning(&mut trust, [path.as_path()]));
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Found { path: shown, text }),
        Err(error) => Err(CommandError::user(format!("cannot read the settings in {shown}: {error}"))),
    }
}

impl Configuration {
    /// Reads what holds here. `named` is `--config`.
    ///
    /// # Errors
    /// A file that is named and does not exist, and whatever in the files is not understood.
    pub fn load(named: Option<&Path>, environment: &Environment) -> Result<Self, CommandError> {
        let variables = &environment.settings;
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, text)| known == name && !text.is_empty());
            found.map(|(_, text)| PathBuf::from(text))
        };
        let (mut warnings, mut shared) = (Vec::new(), Vec::new());
        let mut trust = Trust::of_this_process();
        let mut here = |name: &str| {
            let path = PathBuf::from(name);
            if !path.exists() {
                return None;
            }
            // Why: anyone could have put it there, and it decides where we connect to and as which user.
            if let Some(open) = trust.open(&path, Care::Shared) {
                warnings.push(format!("{name} is not read, because others could have written it: {open}"));
                return None;
            }
            Some(path)
        };
        let home = environment.home.as_ref();
        let toml = match named.map(Path::to_path_buf).or_else(|| variable("GPUFLEET_CONFIG")) {
            Some(path) => Some(path),
            None => here("gpufleet.toml")
                .or_else(|| {
                    Some(environment.config_dir.as_ref()?.join("gpufleet/config.toml")).filter(|p| p.exists())
                })
                .or_else(|| Some(PathBuf::from("/etc/gpufleet/config.toml")).filter(|p| p.exists())),
        };
        let toml = toml.map(|path| read(path, &mut shared)).transpose()?;
        let given = variable("ANSIBLE_CONFIG")
            .map(|path| if path.is_dir() { path.join("ansible.cfg") } else { path });
        // Why that filter: Ansible goes on to the next place where the named file is not there.
        let readable = |path: &PathBuf| fs::File::open(path).is_ok();
        let ansible_cfg = given
            .filter(readable)
            .or_else(|| here("ansible.cfg").map(|_| PathBuf::from("./ansible.cfg")).filter(readable))
            .or_else(|| Some(home?.join(".ansible.cfg")).filter(readable))
            .or_else(|| Some(PathBuf::from("/etc/ansible/ansible.cfg")).filter(readable));
        let ansible_cfg = ansible_cfg.map(|path| read(path, &mut shared)).transpose()?;
        warnings.extend(shared);
        let file = |found: &'_ Found| -> (String, String) { (found.path.clone(), found.text.clone()) };
        let (toml, ansible_cfg) = (toml.as_ref().map(file), ansible_cfg.as_ref().map(file));
        let settings = Settings::read(&Sources {
            environment: variables,
            toml: toml.as_ref().map(|(path, text)| File { path, text }),
            ansible_cfg: ansible_cfg.as_ref().map(|(path, text)| File { path, text }),
            home: environment.home.as_deref(),
        })?;
        Ok(Self {
            settings,
            toml: toml.map(|(path, _)| path),
            ansible_cfg: ansible_cfg.map(|(path, _)| path),
            warnings,
            used: RefCell::default(),
        })
    }

    /// Notes that the setting fills something in.
    fn uses(&self, name: &'static str) {
        self.used.borrow_mut().push(name);
    }

    fn text(&self, slot: &mut Option<String>, name: &'static str) {
        if let (None, Some(text)) = (&slot, self.settings.text(name)) {
            self.uses(name);
            *slot = Some(text.to_owned());
        }
    }

    fn path(&self, slot: &mut Option<PathBuf>, name: &'static str) {
        if let (None, Some(text)) = (&slot, self.settings.text(name)) {
            self.uses(name);
            *slot = Some(PathBuf::from(text));
        }
    }

    fn seconds(&self, slot: &mut Option<u64>, name: &'static str) {
        if let (None, Some(seconds)) = (&slot, self.settings.seconds(name)) {
            self.uses(name);
            *slot = Some(seconds);
        }
    }

    fn flag(&self, slot: &mut bool, name: &'static str) {
        if let (false, Some(flag)) = (*slot, self.settings.flag(name)) {
            self.uses(name);
            *slot = flag;
        }
    }

    fn choice<T: ValueEnum>(&self, slot: &mut Option<T>, name: &'static str) {
        if let (None, Some(text)) = (&slot, self.settings.text(name))
            && let Ok(value) = T::from_str(text, true)
        {
            self.uses(name);
            *slot = Some(value);
        }
    }

    fn inventory(&self, source: &mut InventorySource) {
        if let ([], Some(list)) = (source.inventory.as_slice(), self.settings.list("inventory")) {
            self.uses("inventory");
            source.inventory = list.to_vec();
        }
        self.seconds(&mut source.script_timeout, "script_timeout");
        self.vault(&mut source.vault);
    }

    fn vault(&self, source: &mut VaultSource) {
        // Why one for all: to Ansible each of the options stands for itself, and the ids are tried first.
        self.paths(&mut source.vault_password_file, "vault_password_file");
        if let ([], Some(ids)) = (source.vault_id.as_slice(), self.settings.list("vault_id")) {
            self.uses("vault_id");
            source.vault_id = ids.to_vec();
        }
        self.flag(&mut source.ask_vault_pass, "ask_vault_pass");
        self.paths(&mut source.vault_identity, "vault_identity");
    }

    fn paths(&self, slot: &mut Vec<PathBuf>, name: &'static str) {
        if let ([], Some(files)) = (slot.as_slice(), self.settings.list(name)) {
            self.uses(name);
            *slot = files.iter().map(PathBuf::from).collect();
        }
    }

    /// For whom `vault` encrypts unless the command line says so.
    fn recipients(&self, recipients: &mut AgeRecipients) {
        if recipients.is_empty() {
            self.paths(&mut recipients.recipients_file, "vault_recipients");
        }
    }

    fn encrypts(&self, with: &mut EncryptWith) {
        self.vault(&mut with.vault);
        if with.encrypt_vault_id.is_none() {
            self.recipients(&mut with.age);
        }
    }

    fn vaults(&self, command: &mut VaultCommand) {
        match command {
            VaultCommand::View(args) => self.vault(&mut args.vault),
            VaultCommand::Encrypt(args) => self.encrypts(&mut args.with),
            VaultCommand::Decrypt(args) => self.vault(&mut args.vault),
            VaultCommand::EncryptString(args) => self.encrypts(&mut args.with),
            VaultCommand::Create(args) => self.encrypts(&mut args.with),
            VaultCommand::Edit(args) => {
                self.vault(&mut args.vault);
                self.recipients(&mut args.age);
            }
            VaultCommand::Rekey(args) => {
                self.vault(&mut args.vault);
                if args.new_vault_id.is_none() && args.new_vault_password_file.is_none() {
                    self.recipients(&mut args.age);
                }
            }
            VaultCommand::Keygen(_) => {}
        }
    }

    fn connection(&self, connection: &mut Connection) {
        // Why: there is no login on this machine itself.
        if connection.kind == Some(ConnectionKind::Local) {
            return;
        }
        self.text(&mut connection.user, "user");
        self.path(&mut connection.private_key, "private_key");
        // Why: an option is for the one as well as for the other.
        if connection.connection_password_file.is_none() && !connection.ask_pass {
            self.path(&mut connection.connection_password_file, "connection_password_file");
        }
        if connection.connection_password_file.is_none() {
            self.flag(&mut connection.ask_pass, "ask_pass");
        }
        self.choice(&mut connection.transport, "transport");
        if let (false, Some(checked)) = (connection.accept_new, self.settings.flag("host_key_checking")) {
            self.uses("host_key_checking");
            connection.accept_new = !checked;
        }
        self.path(&mut connection.ssh_config, "ssh_config");
        self.text(&mut connection.ssh_args, "ssh_args");
        self.text(&mut connection.ssh_common_args, "ssh_common_args");
        self.text(&mut connection.ssh_extra_args, "ssh_extra_args");
        if let (None, Some(forks)) = (connection.forks, self.settings.count("forks")) {
            self.uses("forks");
            connection.forks = Some(forks);
        }
        self.seconds(&mut connection.connect_timeout, "connect_timeout");
        self.seconds(&mut connection.task_timeout, "task_timeout");
    }

    fn escalation(&self, escalation: &mut Escalation) {
        self.flag(&mut escalation.r#become, "become");
        self.text(&mut escalation.become_user, "become_user");
        self.text(&mut escalation.become_method, "become_method");
        if escalation.become_password_file.is_none() && !escalation.ask_become_pass {
            self.path(&mut escalation.become_password_file, "become_password_file");
        }
        if escalation.become_password_file.is_none() {
            self.flag(&mut escalation.ask_become_pass, "become_ask_pass");
        }
    }

    fn roles(&self, slot: &mut Vec<String>) {
        if !self.settings.roles_path.is_empty() {
            self.uses("roles_path");
            slot.clone_from(&self.settings.roles_path);
        }
    }

    fn choice_of_tasks(&self, choice: &mut TaskChoice) {
        self.flag(&mut choice.force_handlers, "force_handlers");
    }

    fn documents(&self, documents: &mut Documents) {
        self.choice(&mut documents.format, "format");
    }

    /// What the command line says about colours, else what the settings say.
    pub fn color(&self, given: Option<ColorChoice>) -> ColorChoice {
        let mut color = given;
        self.choice(&mut color, "color");
        color.unwrap_or(ColorChoice::Auto)
    }

    /// How many records of runs are kept, and for how long.
    pub fn kept_runs(&self) -> KeptRuns {
        let usual = KeptRuns::default();
        KeptRuns {
            most: self.settings.count("keep_runs").unwrap_or(usual.most),
            age_s: self.settings.seconds("keep_runs_for").unwrap_or(usual.age_s),
        }
    }

    /// Whether settings matter to the command.
    pub fn concerns(command: &Command) -> bool {
        !matches!(
            command,
            Command::Runs(_)
                | Command::Report(_)
                | Command::Resume(_)
                | Command::Pause(_)
                | Command::Abort(_)
                | Command::Doc(_)
                | Command::Schema(_)
                | Command::Man(_)
                | Command::Complete(_)
                | Command::Completion { .. }
        )
    }

    /// Fills in what the command line does not say.
    pub fn apply(&self, command: &mut Command) {
        match command {
            Command::Run(args) => {
                self.playbooks(&mut args.source);
                self.connection(&mut args.connection);
                self.documents(&mut args.documents);
                self.flag(&mut args.diff, "diff");
            }
            Command::Adopt(args) => {
                self.playbooks(&mut args.run_args.source);
                self.connection(&mut args.run_args.connection);
                self.documents(&mut args.run_args.documents);
                self.flag(&mut args.run_args.diff, "diff");
            }
            Command::Plan(args) => {
                self.playbooks(&mut args.source);
                self.connection(&mut args.connection);
                self.documents(&mut args.documents);
                self.flag(&mut args.diff, "diff");
            }
            Command::Audit(args) => {
                self.choice_of_tasks(&mut args.choice);
                self.inventory(&mut args.inventory);
                self.escalation(&mut args.escalation);
                self.roles(&mut args.roles_path);
                self.connection(&mut args.connection);
                self.documents(&mut args.documents);
                self.text(&mut args.store.store, "store");
            }
            Command::Serve(args) => self.text(&mut args.store.store, "store"),
            Command::History(args) => {
                self.text(&mut args.store.store, "store");
                self.choice(&mut args.format, "format");
            }
            Command::Locks(args) => {
                self.inventory(&mut args.source.inventory);
                self.escalation(&mut args.source.escalation);
                self.roles(&mut args.source.roles_path);
                self.connection(&mut args.connection);
            }
            Command::Facts(args) => {
                self.access(&mut args.access);
                self.choice(&mut args.format, "format");
            }
            Command::Status(call) => {
                let args = call.args_mut();
                self.access(&mut args.access);
            }
            Command::Topology(args) => {
                self.access(&mut args.access);
            }
            Command::Mig(MigCommand::Fit(args)) => {
                self.access(&mut args.access);
            }
            Command::Exec(args) => {
                self.nodes(&mut args.inventory, &mut args.escalation, &mut args.connection);
                self.choice(&mut args.format, "format");
                self.flag(&mut args.diff, "diff");
            }
            Command::Keep(KeepCommand::Status(args)) => {
                self.access(&mut args.access);
                self.choice(&mut args.format, "format");
            }
            Command::Keep(KeepCommand::Remove(args)) => {
                self.nodes(&mut args.inventory, &mut args.escalation, &mut args.connection);
                self.choice(&mut args.format, "format");
            }
            Command::Clean(args) => {
                self.nodes(&mut args.inventory, &mut args.escalation, &mut args.connection);
            }
            Command::Inventory(args) => self.inventory(&mut args.inventory),
            Command::Hosts(args) => self.inventory(&mut args.inventory),
            Command::Check(args) => {
                // Why not the inventory: without one, variables are not judged, and a person has to say so.
                self.vault(&mut args.inventory.vault);
                self.roles(&mut args.roles_path);
            }
            Command::Import(args) => self.roles(&mut args.roles_path),
            Command::Vault(command) => self.vaults(command),
            Command::Watch(args) => args.config.clone_from(&self.toml.as_ref().map(PathBuf::from)),
            _ => {}
        }
    }

    fn playbooks(&self, source: &mut super::args::PlaybookSource) {
        self.choice_of_tasks(&mut source.choice);
        self.inventory(&mut source.inventory);
        self.escalation(&mut source.escalation);
        self.roles(&mut source.roles_path);
    }

    fn access(&self, access: &mut NodeAccess) {
        self.nodes(&mut access.inventory, &mut access.escalation, &mut access.connection);
    }

    fn nodes(
        &self,
        inventory: &mut InventorySource,
        escalation: &mut Escalation,
        connection: &mut Connection,
    ) {
        self.inventory(inventory);
        self.escalation(escalation);
        self.connection(connection);
    }

    /// Says on standard error what Ansible's files and variables decided, and with `-v` what they did not.
    pub fn announce(&self, output: &Output) {
        for warning in &self.warnings {
            output.warning(warning);
        }
        let used = self.used.borrow();
        let names = |of: &dyn Fn(&Origin) -> Option<String>| {
            let mut names: Vec<String> = Vec::new();
            for key in KEYS.iter().filter(|key| used.contains(&key.name)) {
                let name = self.settings.get(key.name).and_then(|given| of(&given.origin));
                names.extend(name.map(|name| if name.is_empty() { key.name.to_owned() } else { name }));
            }
            names
        };
        let from_file = names(&|origin| matches!(origin, Origin::AnsibleCfg { .. }).then(String::new));
        let from_variables = names(&|origin| match origin {
            Origin::Environment(name) if origin.is_ansible() => Some(name.clone()),
            _ => None,
        });
        let mut parts = Vec::new();
        if let (false, Some(path)) = (from_file.is_empty(), &self.ansible_cfg) {
            parts.push(format!("{} of {path}", from_file.join(", ")));
        }
        if !from_variables.is_empty() {
            parts.push(format!("{} of the environment", from_variables.join(", ")));
        }
        if !parts.is_empty() {
            output.status(&format!("goes by Ansible's settings: {}", parts.join("; ")));
        }
        if output.verbose == 0 || used.is_empty() {
            return;
        }
        let own = names(&|origin| (!origin.is_ansible()).then(String::new));
        if !own.is_empty() {
            output.status(&format!("settings: {}; `gpufleet config` shows them", own.join(", ")));
        }
        if let (false, Some(path)) = (self.settings.ignored.is_empty(), &self.ansible_cfg) {
            output.status(&format!("{path}: no meaning here: {}", self.settings.ignored.join(", ")));
        }
    }
}

/// `gpufleet config`.
pub fn config(args: &ConfigArgs, configuration: &Configuration, output: &Output) -> Result<u8, CommandError> {
    output.data(&match args.format {
        Format::Json => gpufleet::visible::json_document(&document(args, configuration))
            .map_err(CommandError::internal)?,
        Format::Jsonl => {
            gpufleet::visible::json_line(&document(args, configuration)).map_err(CommandError::internal)?
        }
        Format::Human | Format::Ansible => table(args, configuration, &output.style),
    })?;
    Ok(0)
}

fn document(args: &ConfigArgs, configuration: &Configuration) -> Value {
    let mut settings = Map::new();
    for key in KEYS {
        let given = configuration.settings.get(key.name);
        if given.is_none() && args.only_changed {
            continue;
        }
        let value = given.map(|given| key.shown(&given.value));
        let from = given.map_or_else(|| "default".to_owned(), |given| given.origin.to_string());
        settings.insert(key.name.to_owned(), json!({ "value": value, "from": from, "about": key.about }));
    }
    json!({
        "gpufleet_toml": configuration.toml,
        "ansible_cfg": configuration.ansible_cfg,
        "ignored": configuration.settings.ignored,
        "settings": settings,
    })
}

/// A line of the table.
struct Row {
    name: &'static str,
    value: String,
    from: String,
    is_set: bool,
}

fn table(args: &ConfigArgs, configuration: &Configuration, style: &Style) -> String {
    let file = |path: &Option<String>| path.clone().unwrap_or_else(|| "none".to_owned());
    let mut out = format!(
        "gpufleet.toml: {}\nansible.cfg:   {}\n\n",
        file(&configuration.toml),
        file(&configuration.ansible_cfg)
    );
    let mut rows = Vec::new();
    for key in KEYS {
        match configuration.settings.get(key.name) {
            Some(given) => rows.push(Row {
                name: key.name,
                value: key.shown(&given.value),
                from: given.origin.to_string(),
                is_set: true,
            }),
            None if args.only_changed => {}
            None => rows.push(Row {
                name: key.name,
                value: key.default.to_owned(),
                from: "default".to_owned(),
                is_set: false,
            }),
        }
    }
    let names = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let values = rows.iter().map(|row| row.value.chars().count()).max().unwrap_or(0).min(48);
    for Row { name, value, from, is_set } in &rows {
        let line = format!("{name:names$}  {value:values$}  {from}");
        out.push_str(&if *is_set { style.paint(Role::Strong, line) } else { line });
        out.push('\n');
    }
    if rows.is_empty() {
        out.push_str("nothing is set\n");
    }
    if !configuration.settings.ignored.is_empty() {
        out.push_str(&format!("\nno meaning here: {}\n", configuration.settings.ignored.join(", ")));
    }
    out
}
