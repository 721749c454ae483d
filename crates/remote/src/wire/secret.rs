//! Secrets that open endpoints.

use std::fmt;
use std::sync::Arc;

use reqwest::header::HeaderValue;

use super::WireError;

/// A secret that opens an endpoint, named by where it came from; its text appears in no message, record or `Debug`, and no
/// child process inherits it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    name: Arc<str>,
    text: Arc<str>,
}

impl Secret {
    /// Takes a secret from an environment variable; `env` looks variables up.
    ///
    /// - Errors: `BadSetting` names the variable, when it is not set or holds what no secret has: spaces, line ends,
    ///   anything not ASCII.
    pub fn from_env(name: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Secret, WireError> {
        let bad = |reason: &str| {
            let reason = format!("needed a secret in the environment variable `{name}`, {reason}");
            WireError::BadSetting { setting: "secret", reason }
        };
        let text = env(name).ok_or_else(|| bad("which is not set"))?;
        let text = text.trim();
        if text.is_empty() {
            return Err(bad("which is empty"));
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(bad("got spaces or characters outside ASCII in it"));
        }
        Ok(Secret { name: name.into(), text: text.into() })
    }

    /// The value of an `authorization` header; marked so that the libraries below do not show it either.
    pub(crate) fn header(&self) -> HeaderValue {
        let text = format!("Bearer {}", self.text);
        let mut value = HeaderValue::from_str(&text).expect("a secret is printable ASCII");
        value.set_sensitive(true);
        value
    }

    /// The text, for a library that builds the header itself.
    pub(crate) fn bare(&self) -> &str {
        &self.text
    }

    /// A text from elsewhere without the secret in it.
    pub(crate) fn hide(&self, text: &str) -> String {
        text.replace(&*self.text, "[hidden]")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret(${}, hidden)", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: Option<&str>, want: Option<&str>) {
        let got = Secret::from_env("THE_KEY", &|name| {
            assert_eq!(name, "THE_KEY");
            value.map(str::to_owned)
        });
        assert_eq!(got.as_ref().err().map(ToString::to_string).as_deref(), want);
    }

    #[test]
    fn a_secret_that_cannot_be_one_is_refused_without_being_shown() {
        check(Some(" sk-12 \n"), None);
        check(None, Some("bad secret: needed a secret in the environment variable `THE_KEY`, which is not set"));
        check(Some(" "), Some("bad secret: needed a secret in the environment variable `THE_KEY`, which is empty"));
        let odd = "bad secret: needed a secret in the environment variable `THE_KEY`, got spaces or characters outside \
                   ASCII in it";
        check(Some("sk-1 2"), Some(odd));
        check(Some("sk-ü"), Some(odd));
    }

    #[test]
    fn debug_shows_the_name_alone() {
        let secret = Secret::from_env("THE_KEY", &|_| Some("sk-12".to_owned())).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret($THE_KEY, hidden)");
        assert!(!format!("{:?}", secret.header()).contains("sk-12"));
        assert_eq!(secret.hide("no such key: sk-12!"), "no such key: [hidden]!");
    }
}
