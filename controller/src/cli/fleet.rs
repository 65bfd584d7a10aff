//! How nodes are reached as far as arguments, environment and terminal say.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use gpufleet::{
    hosts::{Targets, Way},
    session::Fleet,
    template::Outside,
    transport::{
        self, Connector, ConnectorOptions, Deadlines, Prompt, PromptError, PromptRequest, TargetDefaults,
    },
};
use gpufleet_protocol::RunEpoch;
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

/// The way to these hosts; nothing is contacted yet.
///
/// # Errors
/// Connection variables that cannot be understood, and passwords that cannot be asked for.
pub fn fleet(
    ways: &[Way<'_>],
    hosts: &[String],
    extra: &Map<String, Value>,
    login: Login<'_>,
    holder: RunEpoch,
    environment: &Environment,
) -> Result<Fleet, CommandError> {
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
    let targets = Targets::read(ways, hosts, extra, &defaults, outside)?;
    let limit = Duration::from_secs(connection.connect_timeout_s());
    // Why the handshake too: OpenSSH's ConnectTimeout, which people know, counts it in.
    let deadlines = Deadlines { connect: limit, handshake: limit, ..Deadlines::default() };
    let surroundings = surroundings(connection.ssh_config.clone(), environment);
    let handshakes = connection.forks().clamp(1, HANDSHAKES);
    let connector = Connector::new(surroundings, ConnectorOptions { handshakes, deadlines });
    Ok(Fleet::new(connector, targets, holder, environment.who()))
}

/// What keys and connections need of this user's environment.
pub fn surroundings(ssh_config: Option<PathBuf>, environment: &Environment) -> transport::Environment {
    transport::Environment {
        home: environment.home.clone(),
        user: environment.user.clone().unwrap_or_else(|| "root".to_owned()),
        uid: rustix::process::getuid().as_raw(),
        hostname: environment.hostname.clone(),
        ssh_auth_sock: environment.ssh_auth_sock.clone(),
        ssh_config,
        ssh_program: "ssh".into(),
        prompt: Arc::new(Terminal { there: environment.stdin_is_terminal }),
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
