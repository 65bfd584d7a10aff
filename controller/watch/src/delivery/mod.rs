//! Delivers notifications: one try, with bounds. When to try again is [`crate::outbox`]'s.

mod command;
mod signature;
mod webhook;

use std::{fs, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use gpufleet_language::visible::json_line;

use crate::{
    config::{Channel, Means},
    notification::Notification,
    outbox::Delivery,
};

use self::webhook::Post;

/// Bytes of a file with a secret.
const MOST_SECRET: u64 = 64 << 10;
/// Bytes of a file with certificates.
const MOST_CERTIFICATES: u64 = 4 << 20;

/// A channel whose files were read.
#[derive(Debug)]
pub struct Courier {
    pub channel: Channel,
    means: Ready,
}

#[derive(Debug)]
enum Ready {
    Post(Box<Post>),
    Command(Vec<String>),
}

impl Courier {
    /// Reads what a channel needs. Relative paths belong to `folder`.
    ///
    /// # Errors
    /// A file that cannot be read or that every user can read, a secret too short to be one, a wrong URL; without any
    /// of the secrets.
    pub fn prepare(channel: &Channel, folder: &Path) -> Result<Self, String> {
        let means = match &channel.means {
            Means::Webhook(webhook) => {
                Ready::Post(Box::new(Post::prepare(webhook, channel.timeout, folder)?))
            }
            Means::Command(words) => Ready::Command(words.clone()),
        };
        Ok(Self { channel: channel.clone(), means })
    }

    /// Where it goes, without secrets.
    pub fn destination(&self) -> String {
        match &self.means {
            Ready::Post(post) => post.host().to_owned(),
            Ready::Command(words) => words.first().cloned().unwrap_or_default(),
        }
    }

    /// Tries once to deliver.
    pub async fn deliver(
        self: std::sync::Arc<Self>,
        notification: Notification,
        folder: std::path::PathBuf,
        stop: tokio::sync::watch::Receiver<bool>,
    ) -> Delivery {
        // Hidden characters of nodes are escaped: a receiver may print what it gets.
        let body = match json_line(&notification) {
            Ok(body) => body.trim_end().as_bytes().to_vec(),
            Err(error) => return Delivery::Refused { why: error.to_string() },
        };
        match &self.means {
            Ready::Command(words) => command::run(words, body, self.channel.timeout, &folder, stop).await,
            Ready::Post(_) => {
                let id = notification.id;
                let posted = tokio::task::spawn_blocking(move || match &self.means {
                    Ready::Post(post) => post.send(&id, &body),
                    Ready::Command(_) => Delivery::Refused { why: "it is a command".to_owned() },
                });
                // A bound of our own, should that of the client not hold.
                match tokio::time::timeout(LONGEST_POST, posted).await {
                    Ok(Ok(delivery)) => delivery,
                    _ => Delivery::Failed { why: "the delivery did not end".to_owned(), after: None },
                }
            }
        }
    }
}

/// No delivery is waited for any longer than that.
const LONGEST_POST: Duration = Duration::from_secs(15 * 60);

/// Reads a file with a secret: its text without blanks around it.
///
/// # Errors
/// A file that cannot be read, that every user can read, and an empty one.
pub fn secret(folder: &Path, path: &Path, what: &str) -> Result<String, String> {
    let path = folder.join(path);
    let shown = path.display();
    let failed = |error: std::io::Error| format!("cannot read {what} in {shown}: {error}");
    let file = fs::File::open(&path).map_err(failed)?;
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() {
        return Err(format!("cannot read {what}: {shown} is no file"));
    }
    // A group may read it: so are the credentials that systemd gives to services.
    if data.permissions().mode() & 0o007 != 0 {
        return Err(format!("every user can use {what} in {shown}: type `chmod o= {shown}`"));
    }
    let mut text = String::new();
    file.take(MOST_SECRET).read_to_string(&mut text).map_err(failed)?;
    match text.trim() {
        "" => Err(format!("{what} in {shown} is empty")),
        text => Ok(text.to_owned()),
    }
}

fn certificates(folder: &Path, path: &Path) -> Result<Vec<u8>, String> {
    let path = folder.join(path);
    let failed = |error| format!("cannot read the certificates in {}: {error}", path.display());
    let mut bytes = Vec::new();
    fs::File::open(&path).map_err(failed)?.take(MOST_CERTIFICATES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
