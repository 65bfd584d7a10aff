//! The seam between the engine and the key that signs what nodes keep.

use futures::future::BoxFuture;
use gpufleet_protocol::keep::{Seal, Sealed};

/// Who a document is for, as the node says.
#[derive(Clone, Copy, Debug)]
pub struct KeptMachine<'a> {
    pub host: &'a str,
    /// Content of /etc/machine-id.
    pub id: &'a str,
    /// UUIDs of all GPUs.
    pub gpus: &'a [String],
}

/// Signs documents of kept states.
pub trait KeepSigner: Send + Sync {
    /// Returns the public key as a [`Seal`] without a signature, if there is a key already.
    fn known(&self) -> Seal;

    /// Signs the bytes of [`gpufleet_protocol::keep::to_be_signed`].
    ///
    /// The error is why there is no signature, for people.
    fn sign(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Seal, String>>;

    /// Whether this key has signed a document.
    fn has_signed(&self, sealed: &Sealed) -> bool;

    /// Compares a node's identity with those of other hosts, and with `remembers` keeps it. Returns when the newest document
    /// that the host took was signed, in milliseconds since 1970; 0 if none is known.
    ///
    /// Why: a node says itself which machine it is, and one that lies would get a document that another one obeys. The
    /// error is whose the identity is, for people.
    fn identify(&self, machine: KeptMachine<'_>, remembers: bool) -> Result<u64, String>;

    /// Remembers that a host took a document that was signed then.
    fn took(&self, host: &str, serial: u64) -> Result<(), String>;

    /// Forgets a host that keeps nothing any more.
    fn forget(&self, host: &str) -> Result<(), String>;
}
