//! Kubeconfigs for clients, with a client certificate, a token, a token file, or an exec plugin.
//!
//! The exec plugin is a shell script that prints a credential from a file, which the server renews. It adds a line to
//! `calls` each time, so that a test sees whether the client asked again after its token had expired.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

/// How a client authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    Certificate { certificate: String, key: String },
    Token(String),
    TokenFile(PathBuf),
    Exec(PathBuf),
    Nobody,
}

/// Returns a kubeconfig with one context. JSON is YAML, so nothing needs quoting.
pub fn render(server: &str, authority: &str, login: &Login) -> String {
    let encoded = |text: &str| Base64::encode_string(text.as_bytes());
    let user = match login {
        Login::Certificate { certificate, key } => {
            json!({"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)})
        }
        Login::Token(token) => json!({"token": token}),
        Login::TokenFile(path) => json!({"tokenFile": path}),
        Login::Exec(script) => json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": script, "args": [], "env": [], "interactiveMode": "Never",
            "provideClusterInfo": false,
        }}),
        Login::Nobody => json!({}),
    };
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": user}],
    });
    serde_json::to_string_pretty(&config).unwrap_or_default() + "\n"
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
    fs::rename(beside, path)
}

/// The paths of an exec plugin's script, credential and record of calls.
#[derive(Clone, Debug)]
pub struct ExecPlugin {
    pub dir: PathBuf,
}

impl ExecPlugin {
    pub fn script(&self) -> PathBuf {
        self.dir.join("credential.sh")
    }

    fn credential(&self) -> PathBuf {
        self.dir.join("credential.json")
    }

    pub fn token_file(&self) -> PathBuf {
        self.dir.join("token")
    }

    /// Writes the script.
    pub fn install(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let plugin = Self { dir: dir.to_owned() };
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
        let script = format!(
            "#!/bin/sh\necho called >> {}\nexec cat {}\n",
            quoted(&dir.join("calls")),
            quoted(&plugin.credential())
        );
        fs::write(plugin.script(), script)?;
        fs::set_permissions(plugin.script(), fs::Permissions::from_mode(0o700))?;
        Ok(plugin)
    }

    /// Writes a new token for the script and the token file. `expires` is RFC 3339, `None` if the client has to find
    /// out by itself.
    pub fn renew(&self, token: &str, expires: Option<&str>) -> io::Result<()> {
        let mut status = json!({"token": token});
        if let Some(expires) = expires {
            status["expirationTimestamp"] = json!(expires);
        }
        let credential = json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status});
        write_private(&self.credential(), &credential.to_string())?;
        write_private(&self.token_file(), token)
    }

    /// Returns how often a client ran the script.
    pub fn calls(&self) -> usize {
        fs::read_to_string(self.dir.join("calls")).map_or(0, |text| text.lines().count())
    }

    /// Returns the token that the script prints now.
    pub fn token(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&fs::read(self.credential()).ok()?).ok()?;
        Some(value.pointer("/status/token")?.as_str()?.to_owned())
    }
}
