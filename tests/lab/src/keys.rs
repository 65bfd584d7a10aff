//! Key pairs of the lab: one that may log in everywhere, and one for each node.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ssh_key::LineEnding;
use ssh_key::private::{Ed25519Keypair, KeypairData, PrivateKey};

/// Returns a new ed25519 key pair: the private key's text and the public key's line.
pub fn fresh(comment: &str) -> io::Result<(String, String)> {
    let mut seed = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
    let pair = KeypairData::from(Ed25519Keypair::from_seed(&seed));
    let key = PrivateKey::new(pair, comment).map_err(io::Error::other)?;
    let private = key.to_openssh(LineEnding::LF).map_err(io::Error::other)?.to_string();
    let public = key.public_key().to_openssh().map_err(io::Error::other)?;
    Ok((private, public))
}

/// Writes a key pair as `path` and `path.pub`, and returns the public line.
pub fn write_pair(path: &Path) -> io::Result<String> {
    let (private, public) = fresh("gpufleet-lab")?;
    fs::write(path, private)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    fs::write(path.with_extension("pub"), format!("{public}\n"))?;
    Ok(public)
}
