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
use gpufleet::{
    vault::{Envelope, Keyring, age::AgeEnvelope, encrypted_text},
    visible::command_line,
};
use zeroize::Zeroizing;

use super::{
    args::{AgeRecipients, EncryptWith, VaultSource},
    environment::Environment,
    error::CommandError,
    output::Output,
    vault::{Bytes, Sealer, opened, read, replace},
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
    pub age: AgeRecipients,
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
        conflicts_with_all = ["new_vault_password_file", "recipient", "recipients_file"],
        help_heading = "Vault"
    )]
    pub new_vault_id: Option<String>,
    /// File with the new password, or a program that prints it; without either a person is asked.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["recipient", "recipients_file"],
        help_heading = "Vault"
    )]
    pub new_vault_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub age: AgeRecipients,
    #[command(flatten)]
    pub vault: VaultSource,
}

pub fn create(args: &VaultCreateArgs, environment: &Environment) -> Result<(), CommandError> {
    let shown = args.file.display();
    if args.file.exists() {
        return Err(CommandError::user(format!("{shown} is there already")).hint(format!(
            "change it with `{}`",
            command_line(["gpufleet", "vault", "edit", &args.file.to_string_lossy()])
        )));
    }
    let sealer = Sealer::of(&args.with, environment)?;
    let written = edited(&args.file, b"", environment)?;
    let sealed = sealer.seal(&written)?;
    replace(&args.file, sealed.as_bytes())
}

pub fn edit(args: &VaultEditArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let keyring = vault_passwords::keyring(&args.vault, environment)?;
    for file in &args.files {
        let bytes = read(file)?;
        let plain = opened(file, &bytes, &keyring)?;
        let text = encrypted_text(&bytes).unwrap_or_default();
        // Why before the editor: a person's text must not be lost because a recipient is missing.
        let sealer = age_again(file, &text, args, &keyring)?;
        let written = edited(file, &plain, environment)?;
        if *written == *plain {
            output.status(&format!("{} is as it was.", file.display()));
            continue;
        }
        let sealed = match sealer {
            Some(sealer) => sealer.seal(&written)?,
            None => {
                let key = keyring
                    .fitting(&text)
                    .ok_or_else(|| CommandError::internal("no password opens it any more"))?;
                let id = Envelope::parse(&text).ok().and_then(|envelope| envelope.id);
                key.seal_as(&written, id.as_deref()).map_err(CommandError::internal)?
            }
        };
        replace(file, sealed.as_bytes())?;
    }
    Ok(())
}

/// What encrypts a file of age again; none for a file that is none.
///
/// Why a question: a file of age does not tell for whom it is, but it does tell for how many.
fn age_again(
    file: &Path,
    text: &str,
    args: &VaultEditArgs,
    keyring: &Keyring,
) -> Result<Option<Sealer>, CommandError> {
    let Ok(envelope) = AgeEnvelope::parse(text) else { return Ok(None) };
    if !args.age.is_empty() {
        return Ok(Some(Sealer::Age(vault_passwords::recipients(&args.age)?)));
    }
    let own = keyring.fitting_identity(text).filter(|_| envelope.recipients() == 1);
    match own {
        Some(identity) => Ok(Some(Sealer::Age(vec![identity.recipient()]))),
        None => {
            let why = match envelope.wants_passphrase() {
                true => "is encrypted with a passphrase of age".to_owned(),
                false => format!("is encrypted for {} recipients", envelope.recipients()),
            };
            Err(CommandError::user(format!("{} {why}, and no recipient is named", file.display()))
                .hint("name all whom it is for from now on: `-R FILE`, `-r age1…`"))
        }
    }
}

pub fn rekey(args: &VaultRekeyArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let keyring = vault_passwords::keyring(&args.vault, environment)?;
    // Why all first: a file that cannot be opened must not leave half of them with the new password.
    let plain: Vec<(&Path, Bytes)> = args
        .files
        .iter()
        .map(|file| Ok((file.as_path(), opened(file, &read(file)?, &keyring)?)))
        .collect::<Result<_, CommandError>>()?;
    let for_people = !args.age.is_empty();
    let asks = args.new_vault_id.is_none() && args.new_vault_password_file.is_none() && !for_people;
    let vault = VaultSource {
        vault_password_file: args.new_vault_password_file.iter().cloned().collect(),
        vault_id: args.new_vault_id.iter().cloned().collect(),
        ask_vault_pass: asks,
        ..VaultSource::default()
    };
    if asks {
        output.status("The new password:");
    }
    let with = EncryptWith { vault, age: args.age.clone(), encrypt_vault_id: None };
    let sealer = Sealer::of(&with, environment)?;
    let sealed: Vec<(&Path, String)> = plain
        .iter()
        .map(|(file, plain)| Ok((*file, sealer.seal(plain)?)))
        .collect::<Result<_, CommandError>>()?;
    let what = if for_people { "is encrypted for the new recipients" } else { "has the new password" };
    for (file, text) in sealed {
        replace(file, text.as_bytes())?;
        output.status(&format!("{} {what}.", file.display()));
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
        let with = EncryptWith { vault: prod.clone(), ..EncryptWith::default() };
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
        let edits = |vault: VaultSource| VaultEditArgs {
            files: vec![file.clone()],
            age: AgeRecipients::default(),
            vault,
        };
        edit(&edits(prod.clone()), &environment, &output()).unwrap();
        let plain = opened(&file, &read(&file).unwrap(), &keyring).unwrap();
        assert_eq!(*plain, b"planted: 1\nplanted: 1\n");

        source(folder.path(), "new", "other");
        let rekeyed = VaultRekeyArgs {
            files: vec![file.clone()],
            new_vault_id: Some(format!("new@{}", folder.path().join("new").display())),
            new_vault_password_file: None,
            age: AgeRecipients::default(),
            vault: prod,
        };
        rekey(&rekeyed, &environment, &output()).unwrap();
        assert!(fs::read_to_string(&file).unwrap().starts_with("$ANSIBLE_VAULT;1.2;AES256;new\n"));
        assert!(opened(&file, &read(&file).unwrap(), &keyring).is_err(), "the old password is of no use");
    }

    #[test]
    fn a_file_of_age_is_edited_and_rekeyed() {
        use gpufleet::vault::age::{Identity, seal_to};
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secrets.yml");
        let person = |name: &str| {
            let identity = Identity::generate().unwrap();
            let path = folder.path().join(name);
            fs::write(&path, format!("{}\n", *identity.secret_text())).unwrap();
            (identity.recipient(), VaultSource { vault_identity: vec![path], ..VaultSource::default() })
        };
        let ((anne, by_anne), (bob, by_bob)) = (person("anne"), person("bob"));
        let to = |people: &[&gpufleet::vault::age::Recipient]| AgeRecipients {
            recipient: people.iter().map(ToString::to_string).collect(),
            ..AgeRecipients::default()
        };
        let environment = environment(&editor(folder.path(), "echo planted: 1 >> \"$1\""));
        let edits = |vault: &VaultSource, age| {
            let args = VaultEditArgs { files: vec![file.clone()], age, vault: vault.clone() };
            edit(&args, &environment, &output())
        };
        let plain = |vault: &VaultSource| {
            let keyring = vault_passwords::keyring(vault, &environment).unwrap();
            opened(&file, &read(&file).unwrap(), &keyring).map(|bytes| bytes.len())
        };
        fs::write(&file, seal_to(b"", std::slice::from_ref(&anne)).unwrap()).unwrap();
        edits(&by_anne, AgeRecipients::default()).unwrap();
        assert_eq!(plain(&by_anne).unwrap(), 11);
        assert!(plain(&by_bob).is_err());

        let rekeyed = |age, vault: &VaultSource| VaultRekeyArgs {
            files: vec![file.clone()],
            new_vault_id: None,
            new_vault_password_file: None,
            age,
            vault: vault.clone(),
        };
        rekey(&rekeyed(to(&[&anne, &bob]), &by_anne), &environment, &output()).unwrap();
        assert_eq!((plain(&by_anne).unwrap(), plain(&by_bob).unwrap()), (11, 11));
        assert!(edits(&by_bob, AgeRecipients::default()).is_err(), "for two, and none is named");
        edits(&by_bob, to(&[&bob])).unwrap();
        assert_eq!(plain(&by_bob).unwrap(), 22);
        assert!(plain(&by_anne).is_err());
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
        let age = AgeRecipients::default();
        edit(&VaultEditArgs { files: vec![file.clone()], age, vault: prod }, &environment, &output())
            .unwrap();
        assert_eq!(fs::read(&file).unwrap(), before);
    }
}
