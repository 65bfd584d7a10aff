//! Vault passwords: files, programs, questions.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, sync::Arc};

use gpufleet::vault::{DEFAULT_ID, Key, Keyring};

use super::{args::VaultSource, environment::Environment, error::CommandError};

/// The passwords that the options name, in the order in which they are tried.
///
/// # Errors
/// Files that cannot be read, programs that fail, empty passwords, and nobody to ask.
pub fn keyring(source: &VaultSource, environment: &Environment) -> Result<Arc<Keyring>, CommandError> {
    read(source, &|text| asked(text, environment))
}

/// The same to encrypt with: who is asked answers twice, because nothing else would find a slip.
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
    Ok(Arc::new(Keyring::new(keys)))
}

fn asked(text: &str, environment: &Environment) -> Result<Vec<u8>, CommandError> {
    if !environment.stdin_is_terminal {
        return Err(CommandError::user("there is no terminal to ask for the vault password").hint(
            "put it into a file that only you can read, and name it with `--vault-password-file FILE`",
        ));
    }
    let password = rpassword::prompt_password(text).map_err(CommandError::internal)?;
    password_of(password.as_bytes(), "the vault password is empty")
}

/// Blanks and line breaks around a password do not count, as in Ansible.
fn password_of(bytes: &[u8], empty: &str) -> Result<Vec<u8>, CommandError> {
    let password = bytes.trim_ascii();
    if password.is_empty() {
        return Err(CommandError::user(empty));
    }
    Ok(password.to_vec())
}

fn from_file(path: &Path, id: &str) -> Result<Vec<u8>, CommandError> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        CommandError::user(format!("cannot read the vault password in {shown}: {error}"))
    };
    let data = fs::metadata(path).map_err(unreadable)?;
    if data.is_dir() {
        return Err(CommandError::user(format!("the vault password file {shown} is a folder")));
    }
    if data.permissions().mode() & 0o111 == 0 {
        let bytes = fs::read(path).map_err(unreadable)?;
        return password_of(&bytes, &format!("the vault password file {shown} is empty"));
    }
    // Why absolute: a name without a folder would be looked for in PATH.
    let program = std::path::absolute(path).map_err(unreadable)?;
    let mut command = Command::new(program);
    // Why by the name: so Ansible knows programs that take an id.
    if path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("-client")) {
        command.args(["--vault-id", id]);
    }
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|error| {
        let error = CommandError::user(format!("cannot run the vault password program {shown}: {error}"));
        error.hint("a file that holds a password itself must not be executable")
    })?;
    if !output.status.success() {
        return Err(CommandError::user(format!(
            "the vault password program {shown} failed ({})",
            output.status
        )));
    }
    password_of(&output.stdout, &format!("the vault password program {shown} printed nothing"))
}

#[cfg(test)]
mod tests {
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
        assert!(message(from_file(&failing, "prod").unwrap_err()).contains("failed (exit status: 3)"));
        let empty = put("empty", "\n", 0o600);
        assert!(message(from_file(&empty, "prod").unwrap_err()).ends_with("is empty"));
        assert!(message(from_file(&folder.path().join("no"), "prod").unwrap_err()).contains("cannot read"));
        assert!(message(from_file(folder.path(), "prod").unwrap_err()).ends_with("is a folder"));
    }
}
