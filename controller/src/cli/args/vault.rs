//! `gpufleet vault`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::super::vault_edit::{VaultCreateArgs, VaultEditArgs, VaultRekeyArgs};
use super::VaultSource;

#[derive(Clone, Debug, Subcommand)]
pub enum VaultCommand {
    /// Prints what encrypted files hold.
    View(VaultViewArgs),
    /// Encrypts files in place, or standard input.
    Encrypt(VaultEncryptArgs),
    /// Decrypts files in place, or standard input.
    Decrypt(VaultDecryptArgs),
    /// Encrypts strings to put into YAML.
    #[command(visible_alias = "encrypt_string")]
    EncryptString(VaultEncryptStringArgs),
    /// Opens an editor for a new file, and encrypts what was written.
    Create(VaultCreateArgs),
    /// Opens encrypted files in an editor, and encrypts them again with the password they had.
    Edit(VaultEditArgs),
    /// Encrypts files anew with another password, or for other recipients.
    Rekey(VaultRekeyArgs),
    /// Makes a secret key of age, and prints the recipient that it opens files for.
    Keygen(VaultKeygenArgs),
}

#[derive(Clone, Debug, Args)]
pub struct VaultViewArgs {
    /// Encrypted files; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub vault: VaultSource,
}

#[derive(Clone, Debug, Args)]
pub struct VaultEncryptArgs {
    /// Files; without one, or as `-`, standard input is encrypted to standard output.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Writes to this file in place of the one that is read; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub with: EncryptWith,
}

/// Which password encrypts, or for whom.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Vault")]
pub struct EncryptWith {
    #[command(flatten)]
    pub age: AgeRecipients,
    /// Id of the password to encrypt with, where several are given.
    #[arg(long, value_name = "ID", conflicts_with_all = ["recipient", "recipients_file"])]
    pub encrypt_vault_id: Option<String>,
    #[command(flatten)]
    pub vault: VaultSource,
}

/// Recipients of age files; none unless given.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Vault")]
pub struct AgeRecipients {
    /// Encrypts with age for this recipient, `age1…`; may be given several times.
    #[arg(short, long, value_name = "RECIPIENT")]
    pub recipient: Vec<String>,
    /// Encrypts with age for the recipients in this file, one a line; may be given several times.
    #[arg(short = 'R', long, value_name = "FILE")]
    pub recipients_file: Vec<PathBuf>,
}

impl AgeRecipients {
    pub fn is_empty(&self) -> bool {
        self.recipient.is_empty() && self.recipients_file.is_empty()
    }
}

#[derive(Clone, Debug, Args)]
pub struct VaultKeygenArgs {
    /// Writes the key to this new file, which only its owner reads; without it, to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct VaultDecryptArgs {
    /// Files; without one, or as `-`, standard input is decrypted to standard output.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Writes to this file in place of the one that is read; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub vault: VaultSource,
}

#[derive(Clone, Debug, Args)]
pub struct VaultEncryptStringArgs {
    /// Strings; without one, or as `-`, standard input.
    #[arg(value_name = "STRING")]
    pub strings: Vec<String>,
    /// Name of the variable of the string at the same place; may be given several times.
    #[arg(short, long, value_name = "NAME")]
    pub name: Vec<String>,
    /// Name of the variable that standard input becomes.
    #[arg(long, value_name = "NAME", conflicts_with = "strings")]
    pub stdin_name: Option<String>,
    /// Writes to this file in place of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub with: EncryptWith,
}
