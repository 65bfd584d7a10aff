//! `serve`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::StoreChoice;

#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Address and port, or a port of this machine alone; beyond this machine a token or client certificates are needed.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7080", value_parser = listen)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub store: StoreChoice,
    /// Lets only those read who have the token in this file, or that it prints where it is a program: 20 characters at
    /// least.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificate for TLS with its chain, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Lets only those read whose client certificate this authority signed, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
    /// Lets the token travel without TLS beyond this machine.
    #[arg(long)]
    pub insecure: bool,
}

/// An address with a port, or a port.
fn listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse()
        .map_err(|_| "an address with a port, such as 127.0.0.1:7080 or [::]:7080, or a port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_machine() {
        assert_eq!(listen("7081"), Ok("127.0.0.1:7081".parse().unwrap()));
        assert_eq!(listen(":7081"), Ok("127.0.0.1:7081".parse().unwrap()));
        assert_eq!(listen("[::]:80"), Ok("[::]:80".parse().unwrap()));
        assert!(listen("fleet.example:80").is_err() && listen("").is_err());
    }
}
