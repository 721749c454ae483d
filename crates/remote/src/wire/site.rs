//! Where a server is.

use super::{Secret, WireError};

/// A checked address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    /// Without a slash at its end.
    pub(crate) base: String,
    /// Whether it is on this machine.
    pub(crate) near: bool,
    /// Whether it is encrypted.
    pub(crate) secure: bool,
}

impl Site {
    /// Checks an address that begins with one of two schemes, the encrypted one first.
    ///
    /// - Errors: `BadSetting`; an address that would carry a secret over an open line is refused too, and nothing that may
    ///   hold a secret is shown.
    pub(crate) fn parse(text: &str, schemes: [&str; 2], secret: Option<&Secret>) -> Result<Site, WireError> {
        let bad = |reason: String| WireError::BadSetting { setting: "address", reason };
        let base = text.trim_end_matches('/');
        let (secure, rest) = match (base.strip_prefix(schemes[0]), base.strip_prefix(schemes[1])) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(bad(format!("needed one that begins with `{}` or `{}`", schemes[0], schemes[1]))),
        };
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.is_empty() || authority.contains('@') || rest.contains(['?', '#']) {
            return Err(bad("needed a host without user, query or fragment".to_owned()));
        }
        if !rest.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(bad("needed ASCII without spaces".to_owned()));
        }
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => authority,
        };
        let near = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if secret.is_some() && !secure && !near {
            return Err(bad(format!("a secret is sent over `{}` only, got `{base}`", schemes[0])));
        }
        Ok(Site { base: base.to_owned(), near, secure })
    }

    /// The address of something below it.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTTP: [&str; 2] = ["https://", "http://"];

    fn check(text: &str, secret: bool, want: Result<(bool, bool), &str>) {
        let secret = secret.then(|| Secret::from_env("K", &|_| Some("sk-1".to_owned())).unwrap());
        let got = Site::parse(text, HTTP, secret.as_ref()).map(|s| (s.secure, s.near));
        assert_eq!(got.map_err(|e| e.to_string()), want.map_err(|e| format!("bad address: {e}")), "{text}");
    }

    #[test]
    fn a_secret_crosses_no_open_line_but_on_this_machine() {
        check("https://host/v1/", true, Ok((true, false)));
        check("http://host/v1", false, Ok((false, false)));
        check("http://127.0.0.1:80/v1", true, Ok((false, true)));
        check("http://[::1]:80", true, Ok((false, true)));
        check("http://host/v1", true, Err("a secret is sent over `https://` only, got `http://host/v1`"));
        check(
            "http://127.0.0.1.evil.example",
            true,
            Err("a secret is sent over `https://` only, got \
             `http://127.0.0.1.evil.example`"),
        );
    }

    #[test]
    fn an_odd_address_is_refused_and_not_shown() {
        check("sk-1", false, Err("needed one that begins with `https://` or `http://`"));
        for odd in ["https:///a", "https://u:p@host", "https://host/?key=1", "https://host#a"] {
            check(odd, false, Err("needed a host without user, query or fragment"));
        }
        check("https://host/a b", false, Err("needed ASCII without spaces"));
    }
}
