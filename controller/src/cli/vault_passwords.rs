//! Vault passwords and the keys of age: files, programs, questions.

use std::{fs, path::Path, sync::Arc};

use gpufleet::vault::{DEFAULT_ID, Key, Keyring, age, encrypted_text};

use super::{
    args::{AgeRecipients, VaultSource},
    environment::Environment,
    error::CommandError,
    secret_files,
};

/// The passwords that the options name, in the order in which they are tried.
///
/// # Errors
/// Files that cannot be read, programs that fail, empty passwords, and no terminal to ask on.
pub fn keyring(source: &VaultSource, environment: &Environment) -> Result<Arc<Keyring>, CommandError> {
    read(source, &|text| asked(text, environment))
}

/// The same to encrypt with: a person types it twice, because nothing else would find a typo.
///
/// # Errors
/// Those of [`keyring`], and two answers that differ.
pub fn keyring_to_encrypt(
    source: &VaultSource,
    environment: &Environment,
) -> Result<Arc<Keyring>, CommandError> {
    read(source, &|text| {
        let first = asked(text, environment)?;
        match asked(&format!("Once more: {text}"), environment)? == first {
            true => Ok(first),
            false => Err(CommandError::user("the two vault passwords differ")),
        }
    })
}

type Ask<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>, CommandError>;

fn read(source: &VaultSource, ask: Ask<'_>) -> Result<Arc<Keyring>, CommandError> {
    let mut keys = Vec::new();
    for given in &source.vault_id {
        let (id, from) = match given.split_once('@') {
            Some((id, from)) if !from.is_empty() => (if id.is_empty() { DEFAULT_ID } else { id }, from),
            Some(_) => {
                return Err(CommandError::user(format!("`--vault-id {given}` names no source"))
                    .hint("write `ID@FILE`, or `ID@prompt` to be asked"));
            }
            None => (DEFAULT_ID, given.as_str()),
        };
        let password = match from {
            "prompt" | "prompt_ask_vault_pass" => ask(&format!("Vault password ({id}): "))?,
            file => from_file(Path::new(file), id)?,
        };
        keys.push(Key::new(id, password));
    }
    for file in &source.vault_password_file {
        keys.push(Key::new(DEFAULT_ID, from_file(file, DEFAULT_ID)?));
    }
    if source.ask_vault_pass {
        keys.push(Key::new(DEFAULT_ID, ask("Vault password: ")?));
    }
    let mut identities = Vec::new();
    for file in &source.vault_identity {
        identities.extend(identities_of(file, ask)?);
    }
    Ok(Arc::new(Keyring::new(keys).with_identities(identities)))
}

/// The secret keys in a file of age, which may be encrypted with a passphrase itself.
fn identities_of(path: &Path, ask: Ask<'_>) -> Result<Vec<age::Identity>, CommandError> {
    let shown = path.display();
    let mut bytes = secret_files::content(path, "the age identity", &[])?;
    if let Some(text) = encrypted_text(&bytes) {
        let passphrase = ask(&format!("Passphrase of {shown}: "))?;
        let opened = age::AgeEnvelope::parse(&text).and_then(|file| file.open_with_passphrase(&passphrase));
        let opened = opened.map_err(|error| CommandError::user(format!("cannot open {shown}: {error}")))?;
        bytes = opened;
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| no_key(path, 1, age::KeyError::NotAKey))?;
    let found: Vec<age::Identity> = keys_of(text, path)?;
    match found.is_empty() {
        true => Err(CommandError::user(format!("there is no key in {shown}"))
            .hint("`gpufleet vault keygen -o FILE` makes one")),
        false => Ok(found),
    }
}

/// Everybody that options of `vault` name.
///
/// # Errors
/// Files that cannot be read, and what is no recipient.
pub fn recipients(args: &AgeRecipients) -> Result<Vec<age::Recipient>, CommandError> {
    let mut found: Vec<age::Recipient> = Vec::new();
    for text in &args.recipient {
        found.push(text.trim().parse().map_err(|error| {
            CommandError::user(format!("`--recipient` names nobody: {error}")).hint(
                "a recipient looks like `age1…`; `gpufleet vault keygen` makes a key and tells its recipient",
            )
        })?);
    }
    for path in &args.recipients_file {
        let text = fs::read_to_string(path).map_err(|error| {
            CommandError::user(format!("cannot read the recipients in {}: {error}", path.display()))
        })?;
        let named: Vec<age::Recipient> = keys_of(&text, path)?;
        if named.is_empty() {
            return Err(CommandError::user(format!("{} names no recipient", path.display()))
                .hint("write one a line: `age1…`"));
        }
        found.extend(named);
    }
    let mut once: Vec<age::Recipient> = Vec::new();
    for recipient in found {
        if !once.contains(&recipient) {
            once.push(recipient);
        }
    }
    Ok(once)
}

/// Keys, one a line; empty lines and those with `#` in front do not count.
fn keys_of<T: std::str::FromStr<Err = age::KeyError>>(
    text: &str,
    path: &Path,
) -> Result<Vec<T>, CommandError> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(at, line)| line.parse().map_err(|error| no_key(path, at + 1, error))).collect()
}

/// Why without the line: it may be a secret.
fn no_key(path: &Path, line: usize, error: age::KeyError) -> CommandError {
    CommandError::user(format!("{}:{line} is no key of age: {error}", path.display()))
}

fn asked(text: &str, environment: &Environment) -> Result<Vec<u8>, CommandError> {
    if !environment.stdin_is_terminal {
        return Err(CommandError::user("there is no terminal to ask for the vault password").hint(
            "put it into a file that only you can read, and name it with `--vault-password-file FILE`",
        ));
    }
    let password = rpassword::prompt_password(text).map_err(CommandError::internal)?;
    secret_files::trimmed(password.as_bytes())
        .ok_or_else(|| CommandError::user("the vault password is empty"))
}

/// The password of an id in a file, or printed by a program.
fn from_file(path: &Path, id: &str) -> Result<Vec<u8>, CommandError> {
    // Why by the name: so Ansible knows programs that take an id.
    let client = path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("-client"));
    let arguments: &[&str] = if client { &["--vault-id", id] } else { &[] };
    secret_files::password(path, "the vault password", arguments)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn message(error: CommandError) -> String {
        match error {
            CommandError::User { message, .. } => message,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn files_and_programs_give_passwords() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let plain = put("plain", "  hunter2\n\n", 0o600);
        assert_eq!(from_file(&plain, "default").unwrap(), b"hunter2");
        let program = put("pw.sh", "#!/bin/sh\necho \"from $#\"\n", 0o700);
        assert_eq!(from_file(&program, "prod").unwrap(), b"from 0");
        let client = put("pw-client.sh", "#!/bin/sh\necho \"$1 $2\"\n", 0o700);
        assert_eq!(from_file(&client, "prod").unwrap(), b"--vault-id prod");
        let failing = put("bad.sh", "#!/bin/sh\nexit 3\n", 0o700);
        assert!(message(from_file(&failing, "prod").unwrap_err()).ends_with("failed (exit status: 3)"));
        let empty = put("empty", "\n", 0o600);
        assert!(message(from_file(&empty, "prod").unwrap_err()).ends_with("is empty"));
        assert!(message(from_file(&folder.path().join("no"), "prod").unwrap_err()).contains("cannot read"));
        assert!(message(from_file(folder.path(), "prod").unwrap_err()).ends_with("is a folder"));
    }

    #[test]
    fn files_and_programs_give_keys_of_age() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let ask: Ask<'_> = &|_| Err(CommandError::user("nobody is there"));
        let own = age::Identity::generate().unwrap();
        let secret = own.secret_text();
        let text = format!("# created: today\n\n{}\n", *secret);
        let key = put("key", &text);
        assert_eq!(identities_of(&key, ask).unwrap()[0].recipient(), own.recipient());
        let program = put("key.sh", &format!("#!/bin/sh\necho {}\n", *secret));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(identities_of(&program, ask).unwrap()[0].recipient(), own.recipient());

        let last = secret.len() - 1;
        let wrong = put("wrong", &format!("# a\n{}Q\n", &secret[..last].replace('Q', "P")));
        let error = message(identities_of(&wrong, ask).unwrap_err());
        assert!(error.contains("wrong:2 is no key of age: ") && !error.contains("AGE-SECRET"), "{error}");
        let none = put("none", "# nothing\n");
        assert!(message(identities_of(&none, ask).unwrap_err()).starts_with("there is no key in"));

        let named = |recipient: &[String], files: &[&Path]| {
            recipients(&AgeRecipients {
                recipient: recipient.to_vec(),
                recipients_file: files.iter().map(|path| path.to_path_buf()).collect(),
            })
        };
        let other = age::Identity::generate().unwrap().recipient();
        let file = put("people", &format!("# us\n{}\n{other}\n", own.recipient()));
        let all = named(&[own.recipient().to_string()], &[&file]).unwrap();
        assert_eq!(all, [own.recipient(), other], "each once");
        assert!(message(named(&[secret.to_string()], &[]).unwrap_err()).contains("it is a secret key"));
        assert!(message(named(&[], &[&none]).unwrap_err()).ends_with("names no recipient"));
    }
}
