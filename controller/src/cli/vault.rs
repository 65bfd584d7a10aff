//! `vault`: files and strings as ansible-vault and age keep them.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    sync::Arc,
};

use gpufleet::{
    diagnostic::{Diagnostics, SourceFile, Span},
    vault::{
        Key, Keyring,
        age::{Identity, Recipient, armored, seal_to},
        encrypted_text,
    },
};
use zeroize::Zeroizing;

use super::{
    args::{
        EncryptWith, VaultCommand, VaultDecryptArgs, VaultEncryptArgs, VaultEncryptStringArgs,
        VaultKeygenArgs, VaultViewArgs,
    },
    environment::Environment,
    error::CommandError,
    output::Output,
    vault_edit, vault_passwords,
};

pub(super) type Bytes = Zeroizing<Vec<u8>>;

pub fn vault(command: &VaultCommand, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    match command {
        VaultCommand::View(args) => view(args, environment, output),
        VaultCommand::Encrypt(args) => encrypt(args, environment, output),
        VaultCommand::Decrypt(args) => decrypt(args, environment, output),
        VaultCommand::EncryptString(args) => encrypt_string(args, environment, output),
        VaultCommand::Create(args) => vault_edit::create(args, environment),
        VaultCommand::Edit(args) => vault_edit::edit(args, environment, output),
        VaultCommand::Rekey(args) => vault_edit::rekey(args, environment, output),
        VaultCommand::Keygen(args) => keygen(args, output),
    }?;
    Ok(0)
}

/// What encrypts: a password, or the recipients of age.
pub(super) enum Sealer {
    Password { keyring: Arc<Keyring>, id: Option<String> },
    Age(Vec<Recipient>),
}

impl Sealer {
    /// # Errors
    /// Those of reading passwords and recipients; a password that is not clear.
    pub fn of(with: &EncryptWith, environment: &Environment) -> Result<Self, CommandError> {
        if !with.age.is_empty() {
            return Ok(Self::Age(vault_passwords::recipients(&with.age)?));
        }
        let keyring = vault_passwords::keyring_to_encrypt(&with.vault, environment)?;
        let id = with.encrypt_vault_id.clone();
        key(&keyring, id.as_deref())?;
        Ok(Self::Password { keyring, id })
    }

    pub fn seal(&self, plain: &[u8]) -> Result<String, CommandError> {
        match self {
            Self::Password { keyring, id } => {
                key(keyring, id.as_deref())?.seal(plain).map_err(CommandError::internal)
            }
            Self::Age(recipients) => {
                let sealed = seal_to(plain, recipients);
                Ok(armored(&sealed.map_err(|error| CommandError::user(format!("cannot encrypt: {error}")))?))
            }
        }
    }
}

fn keygen(args: &VaultKeygenArgs, output: &Output) -> Result<(), CommandError> {
    let identity = Identity::generate().map_err(CommandError::internal)?;
    let recipient = identity.recipient();
    let text = Zeroizing::new(format!("# public key: {recipient}\n{}\n", *identity.secret_text()));
    match args.output.as_deref().filter(|path| *path != Path::new("-")) {
        None => output.bytes(text.as_bytes()),
        Some(path) if path.exists() => {
            Err(CommandError::user(format!("{} is there already", path.display()))
                .hint("a key that is overwritten opens nothing any more: name another file"))
        }
        Some(path) => {
            replace(path, text.as_bytes())?;
            output.data(&recipient.to_string())
        }
    }
}

fn view(args: &VaultViewArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let keyring = vault_passwords::keyring(&args.vault, environment)?;
    for file in &args.files {
        output.bytes(&opened(file, &read(file)?, &keyring)?)?;
    }
    Ok(())
}

fn encrypt(args: &VaultEncryptArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let sealer = Sealer::of(&args.with, environment)?;
    each(&args.files, args.output.as_deref(), output, |file, bytes| {
        if encrypted_text(bytes).is_some() {
            return Err(CommandError::user(format!("{} is encrypted already", file.display())));
        }
        Ok(Zeroizing::new(sealer.seal(bytes)?.into_bytes()))
    })
}

fn decrypt(args: &VaultDecryptArgs, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let keyring = vault_passwords::keyring(&args.vault, environment)?;
    each(&args.files, args.output.as_deref(), output, |file, bytes| opened(file, bytes, &keyring))
}

fn encrypt_string(
    args: &VaultEncryptStringArgs,
    environment: &Environment,
    output: &Output,
) -> Result<(), CommandError> {
    let key = &Sealer::of(&args.with, environment)?;
    let mut blocks = Vec::new();
    if args.strings.is_empty() {
        let name = args.stdin_name.as_ref().or_else(|| args.name.first());
        blocks.push(block(key, name.map(String::as_str), &read(Path::new("-"))?)?);
    }
    for (index, text) in args.strings.iter().enumerate() {
        let name = args.name.get(index).map(String::as_str);
        blocks.push(match text.as_str() {
            "-" => block(key, name, &read(Path::new("-"))?)?,
            text => block(key, name, text.as_bytes())?,
        });
    }
    let text = blocks.join("\n");
    match args.output.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => replace(path, text.as_bytes()),
        None => output.data(&text),
    }
}

/// `name: !vault |` and the text below it, as ansible-vault writes it.
fn block(key: &Sealer, name: Option<&str>, plain: &[u8]) -> Result<String, CommandError> {
    let text = key.seal(plain)?;
    let mut block = name.map_or_else(String::new, |name| format!("{name}: "));
    block.push_str("!vault |\n");
    for line in text.lines() {
        block.push_str(&format!("          {line}\n"));
    }
    Ok(block)
}

/// The password to encrypt with: the only one, or the one of this id.
pub(super) fn key<'a>(keyring: &'a Keyring, id: Option<&str>) -> Result<&'a Key, CommandError> {
    let keys = keyring.keys();
    let ids = || keys.iter().map(|key| key.id.as_str()).collect::<Vec<_>>().join(", ");
    match (keys, id) {
        ([], _) => Err(CommandError::user("a vault password is needed to encrypt").hint(
            "give it with `--vault-password-file FILE` or `--vault-id ID@FILE`, or let gpufleet ask with \
             `--ask-vault-pass`",
        )),
        (keys, Some(id)) => keys.iter().find(|key| key.id == id).ok_or_else(|| {
            CommandError::user(format!("no password has the id `{id}`")).hint(format!("ids are: {}", ids()))
        }),
        ([key], None) => Ok(key),
        (_, None) => Err(CommandError::user(format!("several vault passwords are given: {}", ids()))
            .hint("name the one to encrypt with: `--encrypt-vault-id ID`")),
    }
}

fn each(
    files: &[std::path::PathBuf],
    to: Option<&Path>,
    output: &Output,
    change: impl Fn(&Path, &[u8]) -> Result<Bytes, CommandError>,
) -> Result<(), CommandError> {
    let stdin = [std::path::PathBuf::from("-")];
    let files = if files.is_empty() { &stdin } else { files };
    if files.len() > 1 && to.is_some() {
        return Err(
            CommandError::user("`--output` takes one file").hint("leave it out to change files in place")
        );
    }
    // Why all first: a file that cannot be changed must not leave half of them changed.
    let changed: Vec<(&Path, Bytes)> = files
        .iter()
        .map(|file| Ok((to.unwrap_or(file), change(file, &read(file)?)?)))
        .collect::<Result<_, CommandError>>()?;
    for (path, bytes) in changed {
        match path == Path::new("-") {
            true => output.bytes(&bytes)?,
            false => replace(path, &bytes)?,
        }
    }
    Ok(())
}

pub(super) fn opened(file: &Path, bytes: &[u8], keyring: &Keyring) -> Result<Bytes, CommandError> {
    let shown = file.display();
    let text = encrypted_text(bytes).ok_or_else(|| {
        CommandError::user(format!("{shown} is not encrypted"))
            .hint("it would begin with `$ANSIBLE_VAULT;`, or be a file of age")
    })?;
    keyring.open_bytes(&text).map_err(|error| {
        let source = SourceFile::secret(shown.to_string(), "");
        Diagnostics::from(error.at(&Span::new(&source, 1, 1, 0))).into()
    })
}

pub(super) fn read(path: &Path) -> Result<Bytes, CommandError> {
    let unreadable =
        |error: std::io::Error| CommandError::user(format!("cannot read {}: {error}", path.display()));
    if path == Path::new("-") {
        let mut bytes = Zeroizing::new(Vec::new());
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(unreadable)?;
        return Ok(bytes);
    }
    fs::read(path).map(Zeroizing::new).map_err(unreadable)
}

/// Puts a file in place at once, readable by its owner only.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    let failed = |error: &dyn std::fmt::Display| {
        CommandError::user(format!("cannot write {}: {error}", path.display()))
    };
    // Why: through a link, the file that it leads to is meant.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Why no mode: temporary files have 0600 from the start.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
    file.write_all(bytes).map_err(|error| failed(&error))?;
    file.as_file().sync_all().map_err(|error| failed(&error))?;
    file.persist(path).map_err(|error| failed(&error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn ring(ids: &[&str]) -> Keyring {
        Keyring::new(ids.iter().map(|id| Key::new(*id, b"hunter2".to_vec())).collect())
    }

    #[test]
    fn the_password_to_encrypt_with_must_be_clear() {
        assert!(key(&ring(&[]), None).is_err());
        assert_eq!(key(&ring(&["prod"]), None).unwrap().id, "prod");
        assert!(key(&ring(&["prod", "test"]), None).is_err());
        assert_eq!(key(&ring(&["prod", "test"]), Some("test")).unwrap().id, "test");
        assert!(key(&ring(&["prod"]), Some("test")).is_err());
    }

    #[test]
    fn a_string_comes_as_a_block_that_reads_back() {
        let keyring = Arc::new(ring(&["prod"]));
        let sealer = Sealer::Password { keyring: Arc::clone(&keyring), id: None };
        let block = block(&sealer, Some("db"), b"planted").unwrap();
        assert!(
            block.starts_with("db: !vault |\n          $ANSIBLE_VAULT;1.2;AES256;prod\n          "),
            "{block}"
        );
        let mut value = gpufleet_language::yaml::parse("a", &block).unwrap().to_json();
        keyring.reveal(&mut value).unwrap();
        assert_eq!(gpufleet::vault::unsealed(value), serde_json::json!({"db": "planted"}));
    }

    #[test]
    fn a_string_of_age_is_a_block_that_reads_back() {
        let identity = Identity::generate().unwrap();
        let sealer = Sealer::Age(vec![identity.recipient()]);
        let block = block(&sealer, Some("db"), b"planted").unwrap();
        assert!(
            block.starts_with("db: !vault |\n          -----BEGIN AGE ENCRYPTED FILE-----\n          "),
            "{block}"
        );
        let mut value = gpufleet_language::yaml::parse("a", &block).unwrap().to_json();
        Keyring::default().with_identities(vec![identity]).reveal(&mut value).unwrap();
        assert_eq!(gpufleet::vault::unsealed(value), serde_json::json!({"db": "planted"}));
    }

    #[test]
    fn a_file_is_replaced_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vars.yml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(opened(&path, b"new", &ring(&["prod"])).is_err());
    }
}
