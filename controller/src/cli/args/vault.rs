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
    /// Encrypts files anew with another password.
    Rekey(VaultRekeyArgs),
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

/// Which password encrypts.
#[derive(Clone, Debug, Args)]
pub struct EncryptWith {
    /// Id of the password to encrypt with, where several are given.
    #[arg(long, value_name = "ID")]
    pub encrypt_vault_id: Option<String>,
    #[command(flatten)]
    pub vault: VaultSource,
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
