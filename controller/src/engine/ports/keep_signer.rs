//! The seam between the engine and the key that signs what nodes keep.

use futures::future::BoxFuture;
use gpufleet_protocol::keep::Seal;

/// Signs documents of kept states.
pub trait KeepSigner: Send + Sync {
    /// Returns the public key as a [`Seal`] without a signature, if there is a key already.
    fn known(&self) -> Seal;

    /// Signs the bytes of [`gpufleet_protocol::keep::to_be_signed`].
    ///
    /// The error is why there is no signature, for people.
    fn sign(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Seal, String>>;
}
