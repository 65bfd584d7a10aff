//! Whether a document is authentic, of this machine, and the newest.

use ed25519_dalek::{Signature, VerifyingKey};
use gpufleet_protocol::{
    keep::{FORMAT, KeptState, MOST_BYTES, Sealed, to_be_signed},
    unhex,
};
use sha2::{Digest, Sha512};

use super::Pin;

/// Whether the signature is by its key, of this document.
fn is_signed(sealed: &Sealed) -> bool {
    let key = unhex(&sealed.seal.key).and_then(|key| VerifyingKey::from_bytes(&key).ok());
    let (Some(key), Some(signature)) = (key, unhex(&sealed.seal.signature)) else { return false };
    let signed = to_be_signed(&Sha512::digest(sealed.document.as_bytes()));
    key.verify_strict(&signed, &Signature::from_bytes(&signature)).is_ok()
}

/// Returns the document without looking at its signature.
///
/// # Errors
/// If it is none that this helper understands.
pub fn document(sealed: &Sealed) -> Result<KeptState, String> {
    if sealed.document.len() > MOST_BYTES {
        return Err("the kept state is larger than any that gpufleet writes".to_owned());
    }
    let kept: KeptState = serde_json::from_str(&sealed.document)
        .map_err(|error| format!("the kept state cannot be understood: {error}"))?;
    match kept.format {
        FORMAT => Ok(kept),
        other => Err(format!("the kept state has format {other}, and this helper knows {FORMAT}")),
    }
}

/// Returns the document if the node may act on it.
///
/// # Errors
/// Why it may not, for people.
pub fn check(sealed: &Sealed, pin: Option<&Pin>, machine_id: Option<&str>) -> Result<KeptState, String> {
    let Some(pin) = pin else { return Err("no key is pinned for the kept state".to_owned()) };
    if sealed.seal.key != pin.key {
        return Err("the kept state is signed by another key than the node's pinned one".to_owned());
    }
    if !is_signed(sealed) {
        return Err(
            "the signature of the kept state is broken: it was changed after it was signed".to_owned()
        );
    }
    let kept = document(sealed)?;
    if kept.serial < pin.serial {
        return Err("the kept state is stale: the node has had a newer one".to_owned());
    }
    match machine_id {
        Some(id) if id == kept.machine_id => Ok(kept),
        Some(id) => Err(format!(
            "the kept state was signed for the machine {}, and this one is {id}: its disk was copied",
            kept.machine_id
        )),
        None => Err("/etc/machine-id cannot be read, so whose the kept state is cannot be told".to_owned()),
    }
}
