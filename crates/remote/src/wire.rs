//! What every client here shares: secrets, one way to reach a server, and the seam between the workspace, which waits,
//! and the protocols, which do not.

mod ask;
mod error;
mod seam;
mod secret;
mod site;
mod tls;

#[cfg(test)]
pub(crate) mod fake;

pub use ask::Patience;
pub(crate) use ask::{Line, Repeat, client};
pub use error::WireError;
pub(crate) use seam::Seam;
pub use secret::Secret;
pub(crate) use site::Site;
pub(crate) use tls::tls_config;

/// The beginning of a text from elsewhere, on one line, for a message.
pub(crate) fn shown(text: &str) -> String {
    const CHARS: usize = 300;
    let mut out: String = text.trim().chars().take(CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().chars().nth(CHARS).is_some() {
        out.push('…');
    }
    out
}
