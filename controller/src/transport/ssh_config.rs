//! `ssh_config` as resolved by OpenSSH itself: `ssh -G`, once per class of aliases, and only if a file exists.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::OnceCell;

use super::{
    arguments::SshOverrides,
    classes::HostClasses,
    environment::Environment,
    error::ConnectError,
    names::{HostName, UserName},
    settings::SshSettings,
};

const DEADLINE: Duration = Duration::from_secs(20);
const SYSTEM_FILE: &str = "/etc/ssh/ssh_config";
/// Output of `ssh -G` that this client uses.
const USED: [&str; 23] = [
    "hostname",
    "port",
    "user",
    "identityfile",
    "certificatefile",
    "identitiesonly",
    "identityagent",
    "userknownhostsfile",
    "globalknownhostsfile",
    "stricthostkeychecking",
    "hostkeyalias",
    "hashknownhosts",
    "proxyjump",
    "proxycommand",
    "connecttimeout",
    "serveraliveinterval",
    "serveralivecountmax",
    "preferredauthentications",
    "pubkeyauthentication",
    "passwordauthentication",
    "kbdinteractiveauthentication",
    "addressfamily",
    "challengeresponseauthentication",
];
/// Options whose omission would be a security hole.
const REFUSED: [&str; 2] = ["revokedhostkeys", "knownhostscommand"];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    /// The alias itself, or its class.
    subject: Subject,
    user: Option<UserName>,
    port: Option<u16>,
    file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Alias(HostName),
    Class(Vec<bool>),
}

/// An answer, and the alias that it is for.
struct Answer {
    alias: HostName,
    options: SshOverrides,
    /// Whether the answer holds for another alias of the class if the host name is replaced.
    portable: bool,
}

type Slot = Arc<OnceCell<Result<Arc<Answer>, String>>>;

#[derive(Default)]
pub(crate) struct SshConfig {
    answers: Mutex<HashMap<Question, Slot>>,
    classes: Mutex<HashMap<Option<PathBuf>, Option<Arc<HostClasses>>>>,
    asked: std::sync::atomic::AtomicUsize,
}

impl SshConfig {
    /// Returns the settings of a connection to `alias`.
    pub(crate) async fn settings(
        &self,
        node: &str,
        alias: &HostName,
        overrides: &SshOverrides,
        environment: &Environment,
    ) -> Result<SshSettings, ConnectError> {
        let fail = |reason: String| ConnectError::Configuration { node: node.to_owned(), reason };
        let configured = self.configured(alias, overrides, environment).await.map_err(fail)?;
        SshSettings::merge(alias, overrides, &configured, environment).map_err(fail)
    }

    async fn configured(
        &self,
        alias: &HostName,
        overrides: &SshOverrides,
        environment: &Environment,
    ) -> Result<SshOverrides, String> {
        let given = match &overrides.config_file {
            Some(file) => Some(expand_home(file, environment)),
            None => environment.ssh_config.clone(),
        };
        if given.as_deref() == Some(Path::new("none")) {
            return Ok(SshOverrides::default());
        }
        let files = match &given {
            Some(file) if !file.exists() => return Err(format!("{} does not exist", file.display())),
            Some(file) => vec![(file.clone(), user_folder(environment))],
            None => default_files(environment),
        };
        if files.iter().all(|(file, _)| !file.exists()) {
            return Ok(SshOverrides::default());
        }
        let question = |subject| Question {
            subject,
            user: overrides.user.clone(),
            port: overrides.port,
            file: given.clone(),
        };
        if let Some(classes) = self.classes(&given, &files) {
            // Without the port, which no condition of the file reads, and which wins over the file's: hosts behind one address
            // differ in nothing else.
            let class = Question { port: None, ..question(Subject::Class(classes.of(alias))) };
            let answer = self.ask(class, alias, environment).await?;
            if answer.alias == *alias {
                return Ok(answer.options.clone());
            }
            if answer.portable {
                let mut options = answer.options.clone();
                options.host_name = Some(alias.to_string());
                return Ok(options);
            }
        }
        let answer = self.ask(question(Subject::Alias(alias.clone())), alias, environment).await?;
        Ok(answer.options.clone())
    }

    fn classes(&self, given: &Option<PathBuf>, files: &[(PathBuf, PathBuf)]) -> Option<Arc<HostClasses>> {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes.entry(given.clone()).or_insert_with(|| HostClasses::read(files).map(Arc::new)).clone()
    }

    async fn ask(
        &self,
        question: Question,
        alias: &HostName,
        environment: &Environment,
    ) -> Result<Arc<Answer>, String> {
        let slot = {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(answers.entry(question.clone()).or_default())
        };
        slot.get_or_init(|| async {
            self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let text = run(&question, alias, environment).await?;
            let options = read(&text)?;
            let portable = is_portable(&options, alias);
            Ok(Arc::new(Answer { alias: alias.clone(), options, portable }))
        })
        .await
        .clone()
    }

    #[cfg(test)]
    fn times_asked(&self) -> usize {
        self.asked.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn user_folder(environment: &Environment) -> PathBuf {
    environment.home.as_ref().map_or_else(|| PathBuf::from("/nonexistent"), |home| home.join(".ssh"))
}

fn default_files(environment: &Environment) -> Vec<(PathBuf, PathBuf)> {
    let folder = user_folder(environment);
    vec![(folder.join("config"), folder), (PathBuf::from(SYSTEM_FILE), PathBuf::from("/etc/ssh"))]
}

fn expand_home(file: &str, environment: &Environment) -> PathBuf {
    match (file.strip_prefix("~/"), &environment.home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(file),
    }
}

async fn run(question: &Question, alias: &HostName, environment: &Environment) -> Result<String, String> {
    let mut command = tokio::process::Command::new(&environment.ssh_program);
    command.arg("-G").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    if let Some(file) = &question.file {
        command.arg("-F").arg(file);
    }
    if let Some(port) = question.port {
        command.arg("-p").arg(port.to_string());
    }
    if let Some(user) = &question.user {
        command.arg("-l").arg(user.as_str());
    }
    command.arg("--").arg(alias.as_str());
    let program = environment.ssh_program.display();
    let output = match tokio::time::timeout(DEADLINE, command.output()).await {
        Err(_) => return Err(format!("`{program} -G` took longer than {} s", DEADLINE.as_secs())),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound && question.file.is_none() => {
            tracing::info!("{program} is not installed, so ssh_config files are not read");
            return Ok(String::new());
        }
        Ok(Err(error)) => return Err(format!("`{program} -G` cannot be started: {error}")),
        Ok(Ok(output)) => output,
    };
    if !output.status.success() {
        return Err(super::error::printable(&output.stderr, 400));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{program} -G` does not answer in UTF-8"))
}

fn read(text: &str) -> Result<SshOverrides, String> {
    let mut options = SshOverrides::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        if REFUSED.contains(&name) && value != "none" {
            return Err(format!(
                "`{name} {value}` is not supported by the built-in SSH client; use `--transport ssh`"
            ));
        }
        if USED.contains(&name) {
            options.option(name, value).map_err(|error| error.to_string())?;
        }
    }
    Ok(options)
}

/// Whether nothing but the host name depends on the alias.
fn is_portable(options: &SshOverrides, alias: &str) -> bool {
    let mut others = options.clone();
    others.host_name = None;
    options.host_name.as_deref() == Some(alias) && !format!("{others:?}").contains(alias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::NoPrompt;

    fn environment(config: &Path) -> Environment {
        Environment {
            home: None,
            user: "ops".to_owned(),
            uid: 0,
            hostname: "admin".to_owned(),
            ssh_auth_sock: None,
            ssh_config: Some(config.to_owned()),
            ssh_program: "ssh".into(),
            prompt: Arc::new(NoPrompt),
        }
    }

    #[tokio::test]
    async fn a_class_of_aliases_is_asked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        std::fs::write(
            &file,
            "Host special\n HostName 10.0.0.9\n Port 2222\nHost gpu*\n User root\n ProxyJump ops@bastion\n\
             Host *\n StrictHostKeyChecking accept-new\n",
        )
        .unwrap();
        let (config, environment) = (SshConfig::default(), environment(&file));
        for n in 0..50 {
            let alias = HostName::check(format!("gpu{n:03}")).unwrap();
            let overrides = SshOverrides { port: (n > 25).then_some(4000 + n), ..SshOverrides::default() };
            let got = config.settings("n", &alias, &overrides, &environment).await.unwrap();
            assert_eq!((got.host.as_str(), got.user.as_str()), (alias.as_str(), "root"));
            assert_eq!(got.port, overrides.port.unwrap_or(22));
            assert!(matches!(got.proxy, super::super::settings::Proxy::Jump(_)));
        }
        assert_eq!(config.times_asked(), 1);
        let got = config
            .settings("n", &HostName::check("special").unwrap(), &SshOverrides::default(), &environment)
            .await
            .unwrap();
        assert_eq!((got.host.as_str(), got.port), ("10.0.0.9", 2222));
        assert_eq!(config.times_asked(), 2);
    }

    #[tokio::test]
    async fn a_missing_or_broken_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let config = SshConfig::default();
        let ask = async |config: &SshConfig| {
            let environment = environment(&file);
            config
                .settings("gpu1", &HostName::check("gpu1").unwrap(), &SshOverrides::default(), &environment)
                .await
        };
        let error = ask(&config).await.unwrap_err().to_string();
        assert!(error.starts_with("gpu1: the SSH configuration cannot be used: "), "{error}");
        std::fs::write(&file, "Nonsense yes\n").unwrap();
        let error = ask(&SshConfig::default()).await.unwrap_err().to_string();
        assert!(error.contains("Bad configuration option: nonsense"), "{error}");
        std::fs::write(&file, "RevokedHostKeys /x\n").unwrap();
        let error = ask(&SshConfig::default()).await.unwrap_err().to_string();
        assert!(error.contains("revokedhostkeys"), "{error}");
    }

    #[tokio::test]
    async fn without_files_nothing_is_started() {
        let config = SshConfig::default();
        let mut environment = environment(Path::new("none"));
        environment.ssh_program = "/nonexistent/ssh".into();
        let got = config
            .settings("n", &HostName::check("n").unwrap(), &SshOverrides::default(), &environment)
            .await
            .unwrap();
        assert_eq!(got.host.as_str(), "n");
    }
}
