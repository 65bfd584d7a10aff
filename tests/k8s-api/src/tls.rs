//! The server's certificate authority, which exists as long as the server.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;

/// Why certificates could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot use a certificate")]
    Use(#[from] rustls::Error),
    #[error("cannot build the check of client certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// A certificate with its key, both PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
    pub der: Vec<u8>,
}

/// Issues the server's certificate and those of clients.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// PEM, for kubeconfigs.
    pub certificate: String,
    der: CertificateDer<'static>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn named(common_name: &str, organisation: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if !organisation.is_empty() {
        name.push(DnType::OrganizationName, organisation);
    }
    name.push(DnType::CommonName, common_name);
    name
}

impl Authority {
    pub fn new() -> Result<Self, TlsError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named("kubernetes", "");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let own = params.self_signed(&key)?;
        Ok(Self { certificate: own.pem(), der: own.der().clone(), issuer: Issuer::new(params, key) })
    }

    /// Creates a client's certificate; the common name is the user.
    pub fn client(&self, user: &str) -> Result<Identity, TlsError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named(user, "");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    }

    /// Returns the server's TLS configuration, with optional client certificates.
    pub fn server(&self) -> Result<Arc<rustls::ServerConfig>, TlsError> {
        let mut params = CertificateParams::new(vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "kubernetes.default".to_owned(),
        ])?;
        params.distinguished_name = named("kube-apiserver", "");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider.clone())
            .allow_unauthenticated()
            .build()?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Returns the certificates that a client has to trust.
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone())?;
        Ok(roots)
    }
}
