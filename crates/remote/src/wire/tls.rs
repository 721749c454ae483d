//! The one TLS setting: certificates of the public roots, `ring` for the mathematics.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

use super::WireError;

/// What encrypted lines are checked with.
pub(crate) fn tls_config() -> Result<ClientConfig, WireError> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    // Named here and not installed for the process, which may hold other users of the library.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| WireError::Machine { action: "prepare encrypted lines", reason: e.to_string() })?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
