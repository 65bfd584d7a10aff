//! Authentication: agent, key files, certificates, keyboard-interactive and password, in OpenSSH's order.
//!
//! A passphrase is asked for only if the node would accept the key. Passwords come from the caller and are never
//! asked for here: a thousand nodes would ask a thousand times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use russh::{
    MethodKind, MethodSet,
    client::{AuthResult, KeyboardInteractiveAuthResponse, Prompt as ServerPrompt},
    keys::{
        HashAlg,
        agent::{AgentIdentity, client::AgentClient},
    },
};
use secrecy::{ExposeSecret, SecretString};
use ssh_key::{Algorithm, Certificate, PublicKey};
use tokio::net::UnixStream;

use super::{
    environment::{Environment, PromptRequest},
    error::{ConnectError, Phase},
    handshake::SshConnection,
    identities::{FileIdentity, IdentityStore, read_certificate},
    settings::{Method, SshSettings},
};

/// Largest number of question rounds of a node.
const CHALLENGES: usize = 10;
const AGENT_DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct Credentials<'a> {
    pub(crate) node: &'a str,
    pub(crate) settings: &'a SshSettings,
    pub(crate) password: Option<&'a SecretString>,
    pub(crate) store: &'a IdentityStore,
    pub(crate) environment: &'a Environment,
    pub(crate) deadline: Duration,
}

/// A public key to offer.
#[derive(Clone)]
struct Candidate {
    public: PublicKey,
    certificate: Option<Certificate>,
    holder: Holder,
}

#[derive(Clone)]
enum Holder {
    Agent,
    File(Arc<FileIdentity>),
}

impl Candidate {
    fn describe(&self) -> String {
        let what = if self.certificate.is_some() { "certificate" } else { "key" };
        match &self.holder {
            Holder::File(identity) => format!("{what} {}", identity.path.display()),
            Holder::Agent => {
                let fingerprint = self.public.fingerprint(HashAlg::Sha256);
                format!("agent {what} {fingerprint}")
            }
        }
    }
}

impl Credentials<'_> {
    /// Authenticates within the deadline, which excludes the time that the user takes to answer.
    pub(crate) async fn authenticate(&self, connection: &mut SshConnection) -> Result<(), ConnectError> {
        let asking = AtomicBool::new(false);
        let address = connection.address.clone();
        let working = self.run(connection, &asking);
        tokio::pin!(working);
        loop {
            tokio::select! {
                result = &mut working => return result,
                () = tokio::time::sleep(self.deadline) => {
                    if !asking.load(Ordering::Relaxed) {
                        return Err(ConnectError::Timeout {
                            node: self.node.to_owned(),
                            address,
                            phase: Phase::Authentication,
                            after: self.deadline,
                        });
                    }
                }
            }
        }
    }

    async fn run(&self, connection: &mut SshConnection, asking: &AtomicBool) -> Result<(), ConnectError> {
        let mut progress = Progress::default();
        let first = connection.handle.authenticate_none(self.settings.user.as_str()).await;
        if progress.take(first.map_err(|error| error.to_string()), connection) {
            return Ok(());
        }
        let mut keys: Option<std::vec::IntoIter<Candidate>> = None;
        let mut used = Vec::new();
        while !progress.over {
            let allowed =
                |method: &&Method| progress.remaining.contains(&kind(**method)) && !used.contains(*method);
            let Some(method) = self.settings.methods.iter().find(allowed).copied() else { break };
            let done = match method {
                Method::PublicKey => {
                    if keys.is_none() {
                        keys = Some(self.candidates(connection, &mut progress.notes).await.into_iter());
                    }
                    match keys.as_mut().and_then(Iterator::next) {
                        Some(candidate) => self.offer(connection, &candidate, &mut progress, asking).await,
                        None => {
                            used.push(Method::PublicKey);
                            false
                        }
                    }
                }
                Method::KeyboardInteractive => {
                    used.push(method);
                    self.answer_questions(connection, &mut progress, asking).await
                }
                Method::Password => {
                    used.push(method);
                    self.send_password(connection, &mut progress).await
                }
            };
            if done {
                return Ok(());
            }
        }
        Err(self.failure(connection, progress))
    }

    fn failure(&self, connection: &SshConnection, mut progress: Progress) -> ConnectError {
        let said = connection.ended();
        if progress.over && progress.tried.is_empty() {
            return ConnectError::Closed {
                node: self.node.to_owned(),
                address: connection.address.clone(),
                phase: Phase::Authentication,
                detail: said.unwrap_or_default(),
            };
        }
        if progress.over {
            let said = said.unwrap_or_else(|| "it closed the connection".to_owned());
            progress.notes.push(format!(
                "{said}; if that was too many keys, name one with `ansible_ssh_private_key_file` and \
                 `-o IdentitiesOnly=yes`"
            ));
        }
        let takes_password = progress
            .remaining
            .iter()
            .any(|kind| matches!(kind, MethodKind::Password | MethodKind::KeyboardInteractive));
        if takes_password && self.password.is_none() {
            progress
                .notes
                .push("it would take a password: set `ansible_password` or use --ask-pass".to_owned());
        }
        let banner = super::error::printable(connection.state.banner().as_bytes(), 160);
        if !banner.is_empty() {
            progress.notes.push(format!("its banner: {banner}"));
        }
        let tried = match progress.tried.as_slice() {
            [] => "nothing, there is no key to offer".to_owned(),
            tried => {
                let shown = tried.iter().take(6).cloned().collect::<Vec<_>>().join(", ");
                let more = tried.len().saturating_sub(6);
                if more > 0 { format!("{shown} and {more} more") } else { shown }
            }
        };
        let accepted = if progress.remaining.is_empty() {
            "nothing more".to_owned()
        } else {
            progress.remaining.iter().map(|kind| <&str>::from(kind).to_owned()).collect::<Vec<_>>().join(", ")
        };
        ConnectError::Authentication {
            node: self.node.to_owned(),
            user: self.settings.user.to_string(),
            tried,
            accepted,
            notes: progress.notes,
        }
    }

    /// Returns the keys to offer: agent keys that a file names, other agent keys, then files.
    async fn candidates(&self, connection: &SshConnection, notes: &mut Vec<String>) -> Vec<Candidate> {
        let mut files = Vec::new();
        for file in &self.settings.identity_files {
            match self.store.load(&file.path, self.environment).await {
                Ok(Some(identity)) => files.push(identity),
                Ok(None) if file.explicit => notes.push(format!("{} does not exist", file.path.display())),
                Ok(None) => {}
                Err(reason) => notes.push(format!("{}: {reason}", file.path.display())),
            }
        }
        let mut certificates = Vec::new();
        for path in &self.settings.certificate_files {
            match read_certificate(path) {
                Ok(certificate) => certificates.push(certificate),
                Err(reason) => notes.push(format!("{}: {reason}", path.display())),
            }
        }
        let agent = self.agent_identities(connection, notes).await;
        order(&files, &certificates, &agent, self.settings.identities_only)
    }

    async fn agent_identities(
        &self,
        connection: &SshConnection,
        notes: &mut Vec<String>,
    ) -> Vec<AgentIdentity> {
        let asking = async {
            let mut agent = self.agent(connection).await?;
            agent.request_identities().await.map_err(|error| error.to_string())
        };
        if self.settings.agent.is_none() {
            return Vec::new();
        }
        match tokio::time::timeout(AGENT_DEADLINE, asking).await {
            Ok(Ok(identities)) => identities,
            Ok(Err(reason)) => {
                notes.push(format!("the SSH agent cannot be used: {reason}"));
                Vec::new()
            }
            Err(_) => {
                notes.push(format!("the SSH agent did not answer within {} s", AGENT_DEADLINE.as_secs()));
                Vec::new()
            }
        }
    }

    async fn agent(&self, connection: &SshConnection) -> Result<AgentClient<UnixStream>, String> {
        let path = self.settings.agent.as_ref().ok_or("there is none")?;
        let mut agent = AgentClient::connect_uds(path).await.map_err(|error| error.to_string())?;
        if let Some(binding) = connection.handle.agent_session_binding() {
            // Ignored: agents other than OpenSSH's do not support it, and only constrained keys need it.
            drop(agent.bind_session(binding, false).await);
        }
        Ok(agent)
    }

    async fn offer(
        &self,
        connection: &mut SshConnection,
        candidate: &Candidate,
        progress: &mut Progress,
        asking: &AtomicBool,
    ) -> bool {
        let hash = match candidate.public.algorithm() {
            Algorithm::Rsa { .. } => match connection.handle.best_supported_rsa_hash().await {
                Ok(Some(Some(hash))) => Some(hash),
                Ok(Some(None)) => {
                    progress.notes.push("it takes RSA keys only with SHA-1, which is broken".to_owned());
                    return false;
                }
                Ok(None) => Some(HashAlg::Sha256),
                Err(_) => {
                    progress.over = true;
                    return false;
                }
            },
            _ => None,
        };
        progress.tried.push(candidate.describe());
        let user = self.settings.user.to_string();
        let agent = match &candidate.holder {
            Holder::File(_) => None,
            Holder::Agent => match self.agent(connection).await {
                Ok(agent) => Some(agent),
                Err(reason) => {
                    progress.notes.push(format!("the SSH agent cannot be used: {reason}"));
                    return false;
                }
            },
        };
        let mut signer = Signer { credentials: self, candidate, agent, asking };
        let result = match &candidate.certificate {
            Some(certificate) => {
                connection
                    .handle
                    .authenticate_certificate_with(user, certificate.clone(), hash, &mut signer)
                    .await
            }
            None => {
                let bare = PublicKey::new(candidate.public.key_data().clone(), "");
                connection.handle.authenticate_publickey_with(user, bare, hash, &mut signer).await
            }
        };
        match result {
            Ok(result) => progress.take(Ok(result), connection),
            Err(SignError(reason)) => {
                progress.notes.push(format!("{}: {reason}", candidate.describe()));
                progress.over = connection.is_closed();
                false
            }
        }
    }

    async fn send_password(&self, connection: &mut SshConnection, progress: &mut Progress) -> bool {
        let Some(password) = self.password else { return false };
        progress.tried.push("password".to_owned());
        let result = connection
            .handle
            .authenticate_password(self.settings.user.as_str(), password.expose_secret())
            .await;
        progress.take(result.map_err(|error| error.to_string()), connection)
    }

    async fn answer_questions(
        &self,
        connection: &mut SshConnection,
        progress: &mut Progress,
        asking: &AtomicBool,
    ) -> bool {
        // Without a password or an earlier success, every node would ask for a password.
        if self.password.is_none() && !progress.partial {
            return false;
        }
        progress.tried.push("keyboard-interactive".to_owned());
        let user = self.settings.user.to_string();
        let mut response = connection.handle.authenticate_keyboard_interactive_start(user, None).await;
        let mut password = self.password;
        for _ in 0..CHALLENGES {
            match response {
                Ok(KeyboardInteractiveAuthResponse::Success) => return true,
                Ok(KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success }) => {
                    let result = AuthResult::Failure { remaining_methods, partial_success };
                    return progress.take(Ok(result), connection);
                }
                Ok(KeyboardInteractiveAuthResponse::InfoRequest { name, instructions, prompts }) => {
                    let title = format!("{name} {instructions}");
                    let answers = self.answers(title.trim(), prompts, &mut password, progress, asking).await;
                    let Some(answers) = answers else {
                        progress.over = true;
                        return false;
                    };
                    response = connection.handle.authenticate_keyboard_interactive_respond(answers).await;
                }
                Err(_) => {
                    progress.over = true;
                    return false;
                }
            }
        }
        progress.notes.push("it asked too many questions".to_owned());
        progress.over = true;
        false
    }

    async fn answers(
        &self,
        title: &str,
        prompts: Vec<ServerPrompt>,
        password: &mut Option<&SecretString>,
        progress: &mut Progress,
        asking: &AtomicBool,
    ) -> Option<Vec<String>> {
        let mut answers = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let wants_password = !prompt.echo && prompt.prompt.to_ascii_lowercase().contains("password");
            if let (true, Some(known)) = (wants_password, password.take()) {
                answers.push(known.expose_secret().to_owned());
                continue;
            }
            let text = format!("{title} {}", prompt.prompt);
            let request = PromptRequest::Challenge {
                node: self.node.to_owned(),
                text: super::error::printable(text.as_bytes(), 200),
                echo: prompt.echo,
            };
            asking.store(true, Ordering::Relaxed);
            let answer = self.store.ask(request, self.environment).await;
            asking.store(false, Ordering::Relaxed);
            match answer {
                Ok(answer) => answers.push(answer.expose_secret().to_owned()),
                Err(error) => {
                    let asked = super::error::printable(prompt.prompt.as_bytes(), 60);
                    progress.notes.push(format!("it asks `{asked}`, and {error}"));
                    return None;
                }
            }
        }
        Some(answers)
    }
}

#[derive(Debug)]
struct Progress {
    remaining: MethodSet,
    tried: Vec<String>,
    notes: Vec<String>,
    /// A method succeeded, and the node requires another one.
    partial: bool,
    /// The connection is gone, or another attempt is useless.
    over: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            remaining: MethodSet::empty(),
            tried: Vec::new(),
            notes: Vec::new(),
            partial: false,
            over: false,
        }
    }
}

impl Progress {
    /// Evaluates an answer of the node. Returns whether authentication is complete.
    fn take(&mut self, result: Result<AuthResult, String>, connection: &SshConnection) -> bool {
        match result {
            Ok(AuthResult::Success) => return true,
            Ok(AuthResult::Failure { remaining_methods, partial_success }) => {
                self.partial |= partial_success;
                // A cut connection looks like a refusal that leaves no method.
                if remaining_methods.is_empty() {
                    self.over = true;
                } else {
                    self.remaining = remaining_methods;
                }
            }
            Err(_) => self.over = true,
        }
        self.over |= connection.is_closed();
        false
    }
}

const fn kind(method: Method) -> MethodKind {
    match method {
        Method::PublicKey => MethodKind::PublicKey,
        Method::KeyboardInteractive => MethodKind::KeyboardInteractive,
        Method::Password => MethodKind::Password,
    }
}

/// Sorts candidates in OpenSSH's order: every key once, its certificate first.
fn order(
    files: &[Arc<FileIdentity>],
    certificates: &[Certificate],
    agent: &[AgentIdentity],
    identities_only: bool,
) -> Vec<Candidate> {
    let mut out: Vec<Candidate> = Vec::new();
    let in_agent =
        |public: &PublicKey| agent.iter().any(|held| held.public_key().key_data() == public.key_data());
    let push = |out: &mut Vec<Candidate>, candidate: Candidate| {
        let same = |other: &Candidate| {
            other.public.key_data() == candidate.public.key_data()
                && other.certificate == candidate.certificate
        };
        if !out.iter().any(same) {
            out.push(candidate);
        }
    };
    let from_file = |out: &mut Vec<Candidate>, identity: &Arc<FileIdentity>, holder: Holder| {
        let beside = identity.certificate.iter();
        let named = certificates.iter().filter(|c| c.public_key() == identity.public.key_data());
        for certificate in named.chain(beside) {
            let certificate = Some(certificate.clone());
            push(out, Candidate { public: identity.public.clone(), certificate, holder: holder.clone() });
        }
        push(out, Candidate { public: identity.public.clone(), certificate: None, holder });
    };
    for identity in files.iter().filter(|identity| in_agent(&identity.public)) {
        from_file(&mut out, identity, Holder::Agent);
    }
    if !identities_only {
        for held in agent {
            let certificate = match held {
                AgentIdentity::Certificate { certificate, .. } => Some(certificate.clone()),
                AgentIdentity::PublicKey { .. } => None,
            };
            let public = held.public_key().into_owned();
            push(&mut out, Candidate { public, certificate, holder: Holder::Agent });
        }
    }
    for identity in files.iter().filter(|identity| !in_agent(&identity.public)) {
        from_file(&mut out, identity, Holder::File(Arc::clone(identity)));
    }
    out
}

struct Signer<'a, 'b> {
    credentials: &'a Credentials<'b>,
    candidate: &'a Candidate,
    agent: Option<AgentClient<UnixStream>>,
    asking: &'a AtomicBool,
}

#[derive(Debug)]
struct SignError(String);

impl From<russh::SendError> for SignError {
    fn from(_: russh::SendError) -> Self {
        Self("the connection is gone".to_owned())
    }
}

impl russh::Signer for Signer<'_, '_> {
    type Error = SignError;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        hash: Option<HashAlg>,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, SignError> {
        match (&self.candidate.holder, self.agent.as_mut()) {
            (Holder::File(identity), _) => {
                self.asking.store(true, Ordering::Relaxed);
                let credentials = self.credentials;
                let signed = credentials.store.sign(identity, hash, data, credentials.environment).await;
                self.asking.store(false, Ordering::Relaxed);
                signed.map_err(SignError)
            }
            (Holder::Agent, Some(agent)) => {
                // The bare key first: the agent has the certificate only if it was added with its key.
                let bare = PublicKey::new(self.candidate.public.key_data().clone(), "");
                let bare = AgentIdentity::PublicKey { key: bare, comment: String::new() };
                let first = agent.sign_request(&bare, hash, data.clone()).await;
                match (first, &self.candidate.certificate) {
                    (Err(_), Some(certificate)) => {
                        let held = AgentIdentity::from(certificate.clone());
                        agent
                            .sign_request(&held, hash, data)
                            .await
                            .map_err(|error| SignError(error.to_string()))
                    }
                    (result, _) => result.map_err(|error| SignError(error.to_string())),
                }
            }
            (Holder::Agent, None) => Err(SignError("the SSH agent is gone".to_owned())),
        }
    }
}
