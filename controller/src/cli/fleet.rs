//! The engine's way to nodes: sessions over the transport.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use gpufleet::{
    diagnostic::Diagnostic,
    drain::{LocalRunner, LoginRunner, Runner},
    engine::{ConnectFailure, Connector, Link, LinkError, Progress, Purpose, Way as SharedWay},
    interpreter::BlobNeed,
    inventory::Inventory,
    playbook::Play,
    session::{
        BlobContent, BlobSource, LockOutcome, NodeFiles, NodeSession, SessionError, SessionOptions, Stage,
    },
    template::{self, Dict, Outside, Scope},
    transport::{
        self, ConnectorOptions, Deadlines, Prompt, PromptError, PromptRequest, Route, Target, TargetDefaults,
        TargetError,
    },
    vault,
};
use gpufleet_protocol::{
    OpOutcome, OpRequest, Reply, Request, RunEpoch,
    message::{LOGIN_USER, Open},
};
use secrecy::SecretString;
use serde_json::{Map, Value};

use super::{
    args::{self, ConnectionKind, TransportChoice},
    environment::Environment,
    error::CommandError,
    secret_files,
};

/// Simultaneous handshakes over the whole fleet: more only makes each slower.
const HANDSHAKES: usize = 64;

/// What a command line says of how nodes are reached.
#[derive(Clone, Copy)]
pub struct Login<'a> {
    pub connection: &'a args::Connection,
    pub escalation: &'a args::Escalation,
    /// What templates of connection variables look up.
    pub outside: &'a Arc<dyn Outside>,
}

/// A way to log in: what a play says of it beside the inventory.
pub struct Way<'a> {
    pub inventory: &'a Inventory,
    /// Hosts that have to be reached so; of others only those that can be.
    pub needed: BTreeSet<&'a str>,
    pub play: Option<&'a Play>,
}

impl<'a> Way<'a> {
    /// As the inventory says.
    pub fn plain(inventory: &'a Inventory, hosts: &'a [String]) -> Self {
        Self { inventory, needed: hosts.iter().map(String::as_str).collect(), play: None }
    }
}

/// Connects to the hosts of an inventory.
pub struct Fleet {
    connector: Arc<transport::Connector>,
    options: SessionOptions,
    /// By host and way to log in: how to reach it without and with `become`.
    targets: HashMap<(String, u16), (Target, Target)>,
    /// Hosts that answered and are not connected yet.
    answered: Mutex<HashSet<String>>,
    holder: RunEpoch,
    who: String,
}

impl Fleet {
    /// Reads how each host is reached; nothing is contacted yet.
    ///
    /// # Errors
    /// Connection variables that cannot be understood, and passwords that cannot be asked for.
    pub fn new(
        ways: &[Way<'_>],
        hosts: &[String],
        extra: &Map<String, Value>,
        login: Login<'_>,
        holder: RunEpoch,
        environment: &Environment,
    ) -> Result<Self, CommandError> {
        let Login { connection, escalation, outside } = login;
        let password = |file: Option<&PathBuf>, asks: bool, what: &str| match file {
            Some(file) => password_in(file, what).map(Some),
            None if asks => ask_password(what, environment).map(Some),
            None => Ok(None),
        };
        let login_password =
            password(connection.connection_password_file.as_ref(), connection.ask_pass, "SSH password")?;
        let become_password =
            password(escalation.become_password_file.as_ref(), escalation.ask_become_pass, "sudo password")?;
        let defaults = TargetDefaults {
            transport: match connection.transport {
                None | Some(TransportChoice::Russh) => transport::Transport::Russh,
                Some(TransportChoice::Ssh) => transport::Transport::OpenSsh,
            },
            local: connection.kind == Some(ConnectionKind::Local),
            arguments: connection.ssh_args.clone(),
            common_arguments: connection.ssh_common_args.clone(),
            extra_arguments: connection.ssh_extra_args.clone(),
            user: connection.user.clone(),
            password: login_password.clone(),
            private_key: connection.private_key.clone(),
            connect_timeout: Some(Duration::from_secs(connection.connect_timeout_s())),
            accept_new_host_keys: connection.accept_new,
            become_password: become_password.or(login_password),
            ..TargetDefaults::default()
        };
        let reach = |way: &Way<'_>, host: &String| -> Result<(Target, Target), CommandError> {
            let (vars, user) = connection_vars(way, host, extra, outside)?;
            let defaults =
                TargetDefaults { user: user.or_else(|| defaults.user.clone()), ..defaults.clone() };
            let wrong = |error: TargetError| misdirected(way, host, extra, &error);
            let plain = Target::from_variables(host, &vars, &defaults).map_err(wrong)?;
            let root = TargetDefaults { become_root: true, ..defaults };
            let root = Target::from_variables(host, &vars, &root).map_err(wrong)?;
            Ok((plain, root))
        };
        let mut targets = HashMap::new();
        for (way, number) in ways.iter().zip(0..) {
            for host in hosts {
                match reach(way, host) {
                    Ok(found) => _ = targets.insert((host.clone(), number), found),
                    // Why no error: a play that the host is not in says nothing of it.
                    Err(_) if number > 0 && !way.needed.contains(host.as_str()) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let limit = Duration::from_secs(connection.connect_timeout_s());
        // Why the handshake too: OpenSSH's ConnectTimeout, which people know, counts it in.
        let deadlines = Deadlines { connect: limit, handshake: limit, ..Deadlines::default() };
        let surroundings = transport::Environment {
            home: environment.home.clone(),
            user: environment.user.clone().unwrap_or_else(|| "root".to_owned()),
            uid: rustix::process::getuid().as_raw(),
            hostname: environment.hostname.clone(),
            ssh_auth_sock: environment.ssh_auth_sock.clone(),
            ssh_config: connection.ssh_config.clone(),
            ssh_program: "ssh".into(),
            prompt: Arc::new(Terminal { there: environment.stdin_is_terminal }),
        };
        let handshakes = connection.forks().clamp(1, HANDSHAKES);
        Ok(Self {
            connector: transport::Connector::new(surroundings, ConnectorOptions { handshakes, deadlines }),
            options: SessionOptions::new(Arc::new(NodeFiles::embedded())),
            targets,
            answered: Mutex::default(),
            holder,
            who: environment.who(),
        })
    }

    /// What runs a scheduler's programs on a host; nothing is contacted yet.
    ///
    /// # Errors
    /// A host that the fleet does not know, or one where sudo wants a password.
    pub fn login(&self, host: &str) -> Result<Arc<dyn Runner>, CommandError> {
        let (target, _) = self
            .targets
            .get(&(host.to_owned(), 0))
            .ok_or_else(|| CommandError::user(format!("the inventory has no host `{host}`")))?;
        let sudo = target.privilege.as_ref();
        if sudo.is_some_and(|sudo| sudo.password.is_some()) {
            return Err(CommandError::user(format!(
                "{host}: `sudo` with a password is not possible for a scheduler's programs"
            ))
            .hint("let its user be a Slurm operator, or let sudo ask for no password there"));
        }
        if sudo.is_none() && matches!(target.connection, transport::Connection::Local) {
            return Ok(Arc::new(LocalRunner));
        }
        Ok(Arc::new(LoginRunner::new(Arc::clone(&self.connector), target.clone())))
    }

    fn answered(&self) -> MutexGuard<'_, HashSet<String>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self, host: &str, purpose: Purpose) -> Option<&Target> {
        let (plain, root) = self.targets.get(&(host.to_owned(), purpose.login))?;
        Some(if purpose.r#become { root } else { plain })
    }

    async fn open(&self, host: &str, purpose: Purpose) -> Result<SessionLink, ConnectFailure> {
        let failed = |error: SessionError| {
            let cause = without_name(host, &error.to_string());
            match error {
                refused if refused.is_refusal() => ConnectFailure::Refused { cause },
                silent if silent.is_silence() => ConnectFailure::Silent { cause },
                SessionError::Refused { .. } => ConnectFailure::Unfit { cause },
                SessionError::Start { kind, .. } if kind.is_unfit() => ConnectFailure::Unfit { cause },
                _ => ConnectFailure::Unreachable { cause },
            }
        };
        let target = self.target(host, purpose).ok_or(ConnectFailure::Unknown)?;
        let here =
            purpose.local.then(|| Target { connection: transport::Connection::Local, ..target.clone() });
        let target = here.as_ref().unwrap_or(target);
        let stage = |stage| {
            if stage == Stage::Starting {
                self.answered().insert(host.to_owned());
            }
        };
        let session =
            NodeSession::open_with(&self.connector, target, &self.options, &stage).await.map_err(failed)?;
        let open = Open {
            holder: self.holder.clone(),
            who: self.who.clone(),
            writes: purpose.writes,
            guest: purpose.guest,
            commands: purpose.commands,
            login_uid: Some(session.login_uid()),
        };
        match session.open_lock(open).await.map_err(failed)? {
            LockOutcome::Opened(_) => Ok(SessionLink { session }),
            LockOutcome::Locked(lock) => {
                let lock = SessionError::Locked { node: host.to_owned(), lock };
                session.close().await;
                Err(ConnectFailure::Locked { cause: without_name(host, &lock.to_string()) })
            }
        }
    }
}

/// Screens name the node already.
fn without_name(host: &str, message: &str) -> String {
    message.strip_prefix(host).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message).to_owned()
}

/// The variables of a host that say how it is reached, rendered, and the play's `remote_user`.
///
/// As in Ansible the play's variables win over the inventory's, and any variable over `remote_user` and `port`.
fn connection_vars(
    way: &Way<'_>,
    host: &str,
    extra: &Map<String, Value>,
    outside: &Arc<dyn Outside>,
) -> Result<(Map<String, Value>, Option<String>), CommandError> {
    let inventory = way.inventory;
    let Some(vars) = inventory.host_vars(host) else {
        // Why: as in Ansible, this machine needs no entry.
        let here = Inventory::is_this_machine(host);
        let local = ("ansible_connection".to_owned(), Value::from("local"));
        return Ok((here.then_some(local).into_iter().collect(), None));
    };
    let mut wanted: Map<String, Value> = vars
        .iter()
        .filter(|(name, _)| name.starts_with("ansible_"))
        .map(|(n, v)| (n.to_owned(), v.clone()))
        .collect();
    wanted.extend(
        extra.iter().filter(|(name, _)| name.starts_with("ansible_")).map(|(n, v)| (n.clone(), v.clone())),
    );
    for value in wanted.values_mut() {
        inventory.reveal(value)?;
        *value = vault::unsealed(value.take());
    }
    let is_template = |value: &Value| value.as_str().is_some_and(template::is_template);
    let said = way.play.filter(|play| play.says_how_to_connect());
    if said.is_none() && !wanted.values().any(is_template) {
        return Ok((wanted, None));
    }
    let mut all = inventory.opened_vars(host);
    all.extend(inventory.magic_vars(host));
    let mut layers = vec![Arc::new(Dict::trusted(extra))];
    layers.extend(way.play.iter().flat_map(|play| [Arc::clone(&play.file_vars), Arc::clone(&play.vars)]));
    layers.push(Arc::new(Dict::trusted(&all)));
    let folder = way.play.map(|play| ("playbook_dir", template::Value::str(&*play.directory)));
    layers.push(Arc::new(folder.into_iter().collect()));
    let scope = Scope::looking(layers, Arc::clone(outside), Vec::new());
    let fails = |name: &str, why: &dyn std::fmt::Display| {
        CommandError::user(format!("{host}: `{name}` cannot be rendered: {why}"))
            .hint("how a node is reached hangs on the inventory, the play's `vars` and `-e` only")
    };
    let mut user = None;
    for (name, value) in said.into_iter().flat_map(Play::connection_words) {
        if extra.contains_key(name) {
            continue;
        }
        let rendered = match template::resolve(value, &scope) {
            Ok(rendered) => rendered,
            // Why: tasks ask it themselves, with all that they see.
            Err(_) if name == "ansible_become" => continue,
            Err(error) => return Err(fails(name, &error.message())),
        };
        match (name, rendered) {
            (_, template::Value::Omit | template::Value::Null) => {}
            ("remote_user", rendered) => user = Some(rendered.to_text()),
            // Why only there: as in Ansible, any variable wins over it.
            ("port", rendered) => {
                if !wanted.contains_key("ansible_ssh_port") {
                    wanted.entry("ansible_port").or_insert(rendered.to_json());
                }
            }
            (name, rendered) => {
                wanted.insert(name.to_owned(), rendered.to_json());
            }
        }
    }
    for (name, value) in wanted.iter_mut().filter(|(_, value)| is_template(value)) {
        let text = value.as_str().unwrap_or_default();
        let rendered = template::render(text, &scope).map_err(|error| {
            CommandError::user(format!("{host}: `{name}` cannot be rendered: {}", error.message()))
        })?;
        *value = rendered.to_json();
    }
    Ok((wanted, user))
}

/// The error for a host that cannot be reached as it is written, with the place in the inventory where that is to blame.
fn misdirected(way: &Way<'_>, host: &str, extra: &Map<String, Value>, error: &TargetError) -> CommandError {
    let of_inventory = |name: &&str| {
        !extra.contains_key(*name)
            && !way.play.is_some_and(|play| play.connection_words().any(|(other, _)| other == *name))
    };
    let place = error.variable().filter(of_inventory).and_then(|name| way.inventory.place_of(host, name));
    match place {
        Some(place) => CommandError::Input(Diagnostic::error(error.to_string()).at(&place).into()),
        None => CommandError::user(error),
    }
}

impl Connector for Fleet {
    fn connect<'a>(
        &'a self,
        host: &'a str,
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, ConnectFailure>> {
        Box::pin(async move {
            let link = self.open(host, purpose).await;
            self.answered().remove(host);
            Ok(Arc::new(link?) as Arc<dyn Link>)
        })
    }

    fn has_answered(&self, host: &str) -> bool {
        self.answered().contains(host)
    }

    fn way<'a>(&'a self, host: &'a str, purpose: Purpose) -> BoxFuture<'a, SharedWay> {
        Box::pin(async move {
            let Some(target) = self.target(host, purpose).filter(|_| !purpose.local) else {
                return SharedWay::Here;
            };
            match self.connector.route(target).await {
                Route::Here => SharedWay::Here,
                Route::Direct => SharedWay::Direct,
                Route::JumpHost(chain) => SharedWay::Through(format!("the jump host {chain}")),
                Route::ProxyCommand(command) => SharedWay::Through(format!("the proxy command `{command}`")),
            }
        })
    }

    fn ask_way<'a>(&'a self, host: &'a str, purpose: Purpose) -> BoxFuture<'a, Option<Result<(), String>>> {
        Box::pin(async move {
            let answer = self.connector.ask_jump_host(self.target(host, purpose)?).await?;
            Some(answer.map_err(|error| error.to_string()))
        })
    }

    fn is_same_way(&self, host: &str, one: u16, other: u16) -> bool {
        let target = |number| self.targets.get(&(host.to_owned(), number));
        one == other
            || matches!(
                (target(one), target(other)),
                (Some((plain, root)), Some((other_plain, other_root)))
                    if plain.is_same(other_plain) && root.is_same(other_root)
            )
    }
}

struct SessionLink {
    session: NodeSession,
}

impl SessionLink {
    fn error(&self, error: &SessionError) -> LinkError {
        let cause = without_name(self.session.node(), &error.to_string());
        match error {
            SessionError::HelperEnded { .. } => LinkError::HelperEnded { cause },
            _ => LinkError::Lost { cause },
        }
    }
}

struct Blobs(HashMap<String, Arc<[u8]>>);

impl BlobSource for Blobs {
    fn open(&self, sha256: &str) -> Option<BlobContent> {
        let bytes = Arc::clone(self.0.get(sha256)?);
        Some(BlobContent::Bytes(tokio_util::bytes::Bytes::from_owner(bytes)))
    }
}

impl Link for SessionLink {
    fn call(
        &self,
        mut request: OpRequest,
        blobs: Vec<BlobNeed>,
        progress: Progress,
    ) -> BoxFuture<'_, Result<OpOutcome, LinkError>> {
        if request.run_as.as_deref() == Some(LOGIN_USER) {
            let (login, helper) = (self.session.login_uid(), self.session.hello().uid);
            request.run_as = (login != helper).then(|| login.to_string());
        }
        let blobs = Blobs(blobs.into_iter().map(|need| (need.blob.sha256, need.bytes)).collect());
        Box::pin(async move {
            let result = self.session.call(request, &blobs, |text: &str| progress(text)).await;
            result.map_err(|error| self.error(&error))
        })
    }

    fn request(&self, request: Request) -> BoxFuture<'_, Result<Reply, LinkError>> {
        Box::pin(async move { self.session.simple(request).await.map_err(|error| self.error(&error)) })
    }

    fn boot_id(&self) -> Option<String> {
        self.session.hello().boot_id.clone()
    }

    fn pushed(&self) -> bool {
        self.session.was_pushed()
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.session.closed().await;
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.session.close())
    }
}

/// Asks on the terminal, if there is one.
struct Terminal {
    there: bool,
}

impl Prompt for Terminal {
    fn ask(&self, request: &PromptRequest) -> Result<SecretString, PromptError> {
        if !self.there {
            return Err(PromptError::NoTerminal);
        }
        let text = match request {
            PromptRequest::Passphrase { path } => format!("Passphrase of {}: ", path.display()),
            PromptRequest::Challenge { node, text, .. } => format!("{node}: {text}"),
        };
        rpassword::prompt_password(text).map(SecretString::from).map_err(|_| PromptError::Cancelled)
    }
}

fn password_in(file: &Path, what: &str) -> Result<SecretString, CommandError> {
    let bytes = secret_files::password(file, &format!("the {what}"), &[])?;
    let text = String::from_utf8(bytes)
        .map_err(|_| CommandError::user(format!("the {what} of {} is not UTF-8 text", file.display())))?;
    Ok(SecretString::from(text))
}

fn ask_password(what: &str, environment: &Environment) -> Result<SecretString, CommandError> {
    if !environment.stdin_is_terminal {
        return Err(CommandError::user(format!("there is no terminal to ask for the {what}")).hint(
            "name a file with it: `--connection-password-file`, `--become-password-file`; or set \
             `ansible_password` or `ansible_become_password` for the hosts",
        ));
    }
    rpassword::prompt_password(format!("{what}: ")).map(SecretString::from).map_err(CommandError::internal)
}
