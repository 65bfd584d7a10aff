//! `serve`: read-only web pages.

use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use gpufleet_history::Store;
use gpufleet_serve::{Access, ServeError, Server, Site, TlsFiles};
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

use super::{
    args::ServeArgs, environment::Environment, error::CommandError, output::Output, secret_files,
    served_runs::ServedRuns, store,
};

impl From<ServeError> for CommandError {
    fn from(error: ServeError) -> Self {
        let hint = error.hint();
        let error = Self::user(error);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

pub fn serve(args: &ServeArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let token = token(args, output)?;
    let place = store::place(&args.store, environment)?;
    let tls = args.tls_cert.as_ref().zip(args.tls_key.as_ref()).map(|(certificate, key)| TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: args.client_ca.clone(),
    });
    let access = Access::new(token.as_ref().map(|token| token.as_str()), tls.is_some())?;
    let access = if args.client_ca.is_some() { access.with_any_host() } else { access };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CommandError::internal)?;
    runtime.block_on(async {
        let server = Server::bind(args.listen, tls.as_ref(), token.is_some(), args.insecure).await?;
        let address = server.address().map_err(CommandError::internal)?;
        let (Ok(mut terminate), Ok(mut interrupt)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            return Err(CommandError::internal("cannot wait for signals"));
        };
        let store = Store::at(&place).await?;
        let runs = Arc::new(ServedRuns::new(&environment.state_dir));
        let site = Site::new(store, runs, access)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        output.status(&format!("Serving {scheme}://{address}/ with the history in {place}, until Ctrl-C."));
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        server.run(site, stop).await;
        Ok(0)
    })
}

/// Reads the token.
fn token(args: &ServeArgs, output: &Output) -> Result<Option<Zeroizing<String>>, CommandError> {
    let Some(path) = &args.token_file else { return Ok(None) };
    let bytes = Zeroizing::new(secret_files::password(path, "the token", &[])?);
    let mode = fs::metadata(path).map_or(0, |data| data.permissions().mode());
    if mode & 0o111 == 0 && mode & 0o004 != 0 {
        output.warning(&format!(
            "every user of this machine can read the token in {}; `chmod 600` keeps it to you",
            path.display()
        ));
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| CommandError::user(format!("the token in {} is no text", path.display())))?;
    Ok(Some(Zeroizing::new(text.to_owned())))
}
