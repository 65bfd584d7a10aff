//! `vault create`, `edit` and `rekey`.
//!
//! What is decrypted for an editor lies in a folder that only its owner enters, in memory where the machine has such a
//! place, and is overwritten and removed when the editor ends.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use gpufleet::vault::Envelope;
use zeroize::Zeroizing;

use super::{
    args::{EncryptWith, VaultSource},
    environment::Environment,
    error::CommandError,
    output::Output,
    vault::{Bytes, key, opened, read, replace},
    vault_passwords,
};

#[derive(Clone, Debug, Args)]
pub struct VaultCreateArgs {
    /// File to make.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub with: EncryptWith,
}

#[derive(Clone, Debug, Args)]
pub struct VaultEditArgs {
    /// Encrypted files, opened one after the other.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub vault: VaultSource,
}

#[derive(Clone, Debug, Args)]
pub struct VaultRekeyArgs {
    /// Encrypted files.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// New password with an id: `ID@FILE`, or `ID@prompt` to be asked.
    #[arg(
        long,
        value_name = "[ID@]SOURCE",
        conflicts_with = "new_vault_password_file",
        help_heading = "Vault"
    )]
    pub new_vault_id: Option<String>,
    /// File with the new password, or a program that prints it; without either a person is asked.
    #[arg(long, value_name = "FILE", help_heading = "Vault")]
    pub new_vault_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub vault: VaultSource,
}

pub fn create(args: &VaultCreateArgs, environment: &Environment) -> Result<(), CommandError> {
    let shown = args.file.display();
    if args.file.exists() {
        return Err(CommandError::user(format!("{shown} is there already"))
            .hint(format!("change it with `gpufleet vault edit {shown}`")));
    }
    let keyring = vault_passwords::keyring_to_encrypt(&args.with.vault, environment)?;
    let key = key(&keyring, args.with.encrypt_vault_id.as_deref())?;
    let written = edited(&args.file, b"", environment)?;
    let sealed = key.seal(&written).map_err(CommandError::internal)?;
    replace(&args.file, sealed.as_bytes())
}

pub fn edit(args: &VaultEditArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let keyring = vault_passwords::keyring(&args.vault, environment)?;
    for file in &args.files {
        let bytes = read(file)?;
        let plain = opened(file, &bytes, &keyring)?;
        let written = edited(file, &plain, environment)?;
        if *written == *plain {
            output.status(&format!("{} is as it was.", file.display()));
            continue;
        }
        let text = String::from_utf8_lossy(&bytes);
        let key =
            keyring.fitting(&text).ok_or_else(|| CommandError::internal("no password opens it any more"))?;
        let id = Envelope::parse(&text).ok().and_then(|envelope| envelope.id);
        let sealed = key.seal_as(&written, id.as_deref()).map_err(CommandError::internal)?;
        replace(file, sealed.as_bytes())?;
    }
    Ok(())
}

pub fn rekey(args: &VaultRekeyArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let keyring = vault_passwords::keyring(&args.vault, environment)?;
    // Why all first: a file that cannot be opened must not leave half of them with the new password.
    let plain: Vec<(&Path, Bytes)> = args
        .files
        .iter()
        .map(|file| Ok((file.as_path(), opened(file, &read(file)?, &keyring)?)))
        .collect::<Result<_, CommandError>>()?;
    let asks = args.new_vault_id.is_none() && args.new_vault_password_file.is_none();
    let source = VaultSource {
        vault_password_file: args.new_vault_password_file.iter().cloned().collect(),
        vault_id: args.new_vault_id.iter().cloned().collect(),
        ask_vault_pass: asks,
    };
    if asks {
        output.status("The new password:");
    }
    let new = vault_passwords::keyring_to_encrypt(&source, environment)?;
    let key = key(&new, None)?;
    let sealed: Vec<(&Path, String)> = plain
        .iter()
        .map(|(file, plain)| Ok((*file, key.seal(plain).map_err(CommandError::internal)?)))
        .collect::<Result<_, CommandError>>()?;
    for (file, text) in sealed {
        replace(file, text.as_bytes())?;
        output.status(&format!("{} has the new password.", file.display()));
    }
    Ok(())
}

/// What a person made of a text.
fn edited(file: &Path, plain: &[u8], environment: &Environment) -> Result<Bytes, CommandError> {
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot edit {}: {error}", file.display()));
    let mut builder = tempfile::Builder::new();
    builder.prefix("gpufleet-vault-").permissions(fs::Permissions::from_mode(0o700));
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => builder.tempdir_in(memory).or_else(|_| builder.tempdir()),
        false => builder.tempdir(),
    }
    .map_err(failed)?;
    // Why its own name: editors choose their colours by it.
    let path = folder.path().join(file.file_name().unwrap_or_else(|| "vault".as_ref()));
    let mut open = fs::OpenOptions::new();
    open.write(true).create_new(true).mode(0o600);
    open.open(&path).and_then(|mut made| made.write_all(plain)).map_err(failed)?;
    let result =
        run_editor(&path, environment).and_then(|()| fs::read(&path).map(Zeroizing::new).map_err(failed));
    wipe(&path);
    result
}

fn run_editor(path: &Path, environment: &Environment) -> Result<(), CommandError> {
    let words = shell_words::split(&environment.editor)
        .map_err(|_| CommandError::user("EDITOR has a quote that is not closed"))?;
    let Some((program, arguments)) = words.split_first() else {
        return Err(CommandError::user("EDITOR names no program"));
    };
    let ended = Command::new(program).args(arguments).arg(path).status().map_err(|error| {
        CommandError::user(format!("cannot run the editor `{program}`: {error}"))
            .hint("name another one with EDITOR")
    })?;
    match ended.success() {
        true => Ok(()),
        false => {
            Err(CommandError::user(format!("the editor `{program}` failed ({ended}): nothing was changed")))
        }
    }
}

/// Overwrites what an editor left, and its folder goes with it; best effort, since a disk may keep old blocks.
fn wipe(path: &Path) {
    let Some(folder) = path.parent() else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let length = entry.metadata().map_or(0, |data| data.len());
        if let Ok(mut file) = fs::OpenOptions::new().write(true).open(entry.path()) {
            let zeros = vec![0; usize::try_from(length).unwrap_or(0).min(1 << 24)];
            let _ = file.write_all(&zeros).and_then(|()| file.sync_all());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(editor: &str) -> Environment {
        Environment { editor: editor.to_owned(), ..Environment::read() }
    }

    /// A program that appends a line to the file it is given.
    fn editor(folder: &Path, script: &str) -> String {
        let path = folder.join("editor.sh");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        format!("sh {}", path.display())
    }

    fn source(folder: &Path, name: &str, password: &str) -> VaultSource {
        let path = folder.join(name);
        fs::write(&path, password).unwrap();
        VaultSource { vault_id: vec![format!("{name}@{}", path.display())], ..VaultSource::default() }
    }

    fn output() -> Output {
        let args = super::super::args::Output { color: None, config: None, verbose: 0, quiet: true };
        Output::new(&args, super::super::args::ColorChoice::Never, &environment("true"))
    }

    #[test]
    fn a_file_is_created_edited_and_gets_another_password() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secrets.yml");
        let prod = source(folder.path(), "prod", "hunter2");
        let with = EncryptWith { encrypt_vault_id: None, vault: prod.clone() };
        let environment = environment(&editor(
            folder.path(),
            "stat -c %a \"$1\" \"$(dirname \"$1\")\" >&2; echo planted: 1 >> \"$1\"",
        ));
        let args = VaultCreateArgs { file: file.clone(), with };
        create(&args, &environment).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("$ANSIBLE_VAULT;1.2;AES256;prod\n") && !text.contains("planted"));
        assert!(create(&args, &environment).is_err(), "it is there already");

        let keyring = vault_passwords::keyring(&prod, &environment).unwrap();
        edit(&VaultEditArgs { files: vec![file.clone()], vault: prod.clone() }, &environment, &output())
            .unwrap();
        let plain = opened(&file, &read(&file).unwrap(), &keyring).unwrap();
        assert_eq!(*plain, b"planted: 1\nplanted: 1\n");

        source(folder.path(), "new", "other");
        let rekeyed = VaultRekeyArgs {
            files: vec![file.clone()],
            new_vault_id: Some(format!("new@{}", folder.path().join("new").display())),
            new_vault_password_file: None,
            vault: prod,
        };
        rekey(&rekeyed, &environment, &output()).unwrap();
        assert!(fs::read_to_string(&file).unwrap().starts_with("$ANSIBLE_VAULT;1.2;AES256;new\n"));
        assert!(opened(&file, &read(&file).unwrap(), &keyring).is_err(), "the old password is of no use");
    }

    #[test]
    fn an_editor_that_fails_changes_nothing_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("seen");
        let environment =
            environment(&editor(folder.path(), &format!("echo \"$1\" > {}; exit 3", kept.display())));
        let error = edited(Path::new("secrets.yml"), b"planted", &environment);
        assert!(error.is_err());
        let path = fs::read_to_string(kept).unwrap();
        assert!(path.trim_end().ends_with("/secrets.yml") && !Path::new(path.trim_end()).exists());
    }

    #[test]
    fn a_file_that_is_left_as_it_was_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yml");
        let prod = source(folder.path(), "prod", "hunter2");
        let environment = environment("true");
        let keyring = vault_passwords::keyring(&prod, &environment).unwrap();
        fs::write(&file, keyring.keys()[0].seal(b"x").unwrap()).unwrap();
        let before = fs::read(&file).unwrap();
        edit(&VaultEditArgs { files: vec![file.clone()], vault: prod }, &environment, &output()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), before);
    }
}
