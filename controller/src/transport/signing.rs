//! Signs bytes with an SSH key: of a file, or held by the SSH agent.

use std::{path::Path, time::Duration};

use russh::keys::{
    HashAlg,
    agent::{AgentIdentity, client::AgentClient},
    ssh_encoding::Decode,
};
use ssh_key::{PublicKey, Signature};

use super::{environment::Environment, identities::IdentityStore};

/// How long an agent may take, which may ask a person.
const AGENT_DEADLINE: Duration = Duration::from_secs(60);

/// An SSH key to sign with.
pub struct SigningKey<'a> {
    store: IdentityStore,
    path: &'a Path,
    environment: &'a Environment,
}

impl<'a> SigningKey<'a> {
    /// The key of a file: a private key, or a public one whose private half the agent has.
    pub fn new(path: &'a Path, environment: &'a Environment) -> Self {
        Self { store: IdentityStore::default(), path, environment }
    }

    /// Signs bytes. The agent does if it has the key; otherwise the file's passphrase is asked for where it has one.
    ///
    /// # Errors
    /// Why there is no signature, without the name of the file.
    pub async fn sign(&self, data: Vec<u8>) -> Result<(PublicKey, Signature), String> {
        let identity = self.store.load(self.path, self.environment).await?.ok_or("there is no such file")?;
        let public = identity.public.clone();
        let hash = public.algorithm().is_rsa().then_some(HashAlg::Sha512);
        let length = data.len();
        let signed = match self.by_agent(&public, hash, &data).await {
            Some(signed) => signed?,
            None => self.store.sign(&identity, hash, data, self.environment).await?,
        };
        // Both give the data back, followed by the signature as a string of SSH.
        let mut rest = signed.get(length..).ok_or("the signature is missing")?;
        let blob = Vec::<u8>::decode(&mut rest).map_err(|error| error.to_string())?;
        let signature = Signature::try_from(blob.as_slice()).map_err(|error| error.to_string())?;
        Ok((public, signature))
    }

    /// `None` if there is no agent, or it does not have this key.
    async fn by_agent(
        &self,
        public: &PublicKey,
        hash: Option<HashAlg>,
        data: &[u8],
    ) -> Option<Result<Vec<u8>, String>> {
        let socket = self.environment.ssh_auth_sock.as_ref()?;
        let asking = async {
            let mut agent = AgentClient::connect_uds(socket).await.ok()?;
            let held = agent.request_identities().await.ok()?;
            let own = held.into_iter().find(|held| match held {
                AgentIdentity::PublicKey { key, .. } => key.key_data() == public.key_data(),
                AgentIdentity::Certificate { .. } => false,
            })?;
            let signed = agent.sign_request(&own, hash, data.to_vec()).await;
            Some(signed.map_err(|error| format!("the SSH agent does not sign with it: {error}")))
        };
        match tokio::time::timeout(AGENT_DEADLINE, asking).await {
            Ok(signed) => signed,
            Err(_) => {
                Some(Err(format!("the SSH agent did not answer within {} s", AGENT_DEADLINE.as_secs())))
            }
        }
    }
}
