//! What a run is given to work with: folders, hosts, recipients, and the classes of action it need not ask for.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::facts::{home, normal};
use crate::{ActionClass, GuardError};

/// What a run is given to work with, as whoever starts it says; part of the rules' digest.
///
/// - Holds: it grants nothing by itself; packs decide what being inside or outside means.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Scope {
    root: Option<String>,
    folders: BTreeSet<String>,
    hosts: BTreeSet<String>,
    recipients: BTreeSet<String>,
    granted: BTreeSet<ActionClass>,
}

/// A scope as files write it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    folders: BTreeSet<String>,
    hosts: BTreeSet<String>,
    recipients: BTreeSet<String>,
    granted: BTreeSet<String>,
}

impl Scope {
    /// The same with a folder where relative paths start; it is inside.
    ///
    /// - Errors: the path is not absolute.
    pub fn rooted_at(self, folder: &str) -> Result<Scope, GuardError> {
        let mut scope = self.with_folder(folder)?;
        scope.root = Some(normal(folder, None));
        Ok(scope)
    }

    /// The same with this folder and all below it inside.
    ///
    /// - Errors: the path is not absolute.
    pub fn with_folder(mut self, folder: &str) -> Result<Scope, GuardError> {
        if !folder.starts_with('/') {
            return Err(GuardError::scope("folder", folder, "an absolute path"));
        }
        self.folders.insert(normal(folder, None));
        Ok(self)
    }

    /// The same with this host inside; `*.example.org` means every host below it and not itself.
    ///
    /// - Errors: it is not a host in lower-case ASCII, without scheme, port and path.
    pub fn with_host(mut self, host: &str) -> Result<Scope, GuardError> {
        let name = host.strip_prefix("*.").unwrap_or(host);
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        let address = name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_string() == name);
        if !address && (name.is_empty() || name.starts_with('.') || name.ends_with('.') || !name.chars().all(plain)) {
            return Err(GuardError::scope("host", host, "a host such as `example.org` or `*.example.org`"));
        }
        self.hosts.insert(host.to_owned());
        Ok(self)
    }

    /// The same with this recipient inside; `@example.org` means everybody of that domain.
    ///
    /// - Errors: it is empty.
    pub fn with_recipient(mut self, recipient: &str) -> Result<Scope, GuardError> {
        let name = recipient.trim().to_lowercase();
        if name.is_empty() || name == "@" {
            return Err(GuardError::scope("recipient", recipient, "an address, an account, or `@` and a domain"));
        }
        self.recipients.insert(name);
        Ok(self)
    }

    /// The same with this class of action granted: packs may let it run without asking.
    ///
    /// - Errors: no class of action has this name.
    pub fn granting(mut self, action: &str) -> Result<Scope, GuardError> {
        let class =
            ActionClass::parse(action).ok_or_else(|| GuardError::scope("granted", action, "a class of action"))?;
        self.granted.insert(class);
        Ok(self)
    }

    /// Where relative paths start.
    pub fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    /// The folders, in their normal form.
    pub fn folders(&self) -> &BTreeSet<String> {
        &self.folders
    }

    /// Whether a class of action is granted.
    pub fn grants(&self, class: ActionClass) -> bool {
        self.granted.contains(&class)
    }

    /// Whether a path in its normal form is inside. A relative one is where no root is known, unless it climbs.
    pub(crate) fn holds(&self, path: &str) -> bool {
        if !path.starts_with('/') {
            let drive = path.as_bytes().get(1) == Some(&b':');
            return self.root.is_none() && !drive && path != ".." && !path.starts_with("../") && !home(path);
        }
        self.folders.iter().any(|folder| {
            folder == "/"
                || path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Whether a host in its normal form is inside.
    pub(crate) fn reaches(&self, host: &str) -> bool {
        self.hosts.contains(host)
            || host.match_indices('.').any(|(at, _)| self.hosts.contains(&format!("*{}", &host[at..])))
    }

    /// Whether a recipient in its normal form is inside.
    pub(crate) fn delivers_to(&self, recipient: &str) -> bool {
        self.recipients.contains(recipient)
            || recipient.rfind('@').is_some_and(|at| self.recipients.contains(&recipient[at..]))
    }
}

impl TryFrom<Written> for Scope {
    type Error = GuardError;

    fn try_from(written: Written) -> Result<Scope, GuardError> {
        let mut scope = Scope::default();
        if let Some(root) = &written.root {
            scope = scope.rooted_at(root)?;
        }
        scope = written.folders.iter().try_fold(scope, |s, f| s.with_folder(f))?;
        scope = written.hosts.iter().try_fold(scope, |s, h| s.with_host(h))?;
        scope = written.recipients.iter().try_fold(scope, |s, r| s.with_recipient(r))?;
        written.granted.iter().try_fold(scope, |s, g| s.granting(g))
    }
}

impl From<Scope> for Written {
    fn from(scope: Scope) -> Written {
        Written {
            root: scope.root,
            folders: scope.folders,
            hosts: scope.hosts,
            recipients: scope.recipients,
            granted: scope.granted.iter().map(|c| c.as_str().to_owned()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_survives_json_and_refuses_what_it_cannot_mean() {
        let text = r#"{"root":"/w/","folders":["/tmp/../x"],"hosts":["*.a.b","::1"],"recipients":["@C.d"],"granted":["send"]}"#;
        let scope: Scope = serde_json::from_str(text).unwrap();
        assert_eq!(scope.root(), Some("/w"));
        assert!(scope.holds("/w") && scope.holds("/x/y") && !scope.holds("/ww") && !scope.holds("a"));
        assert!(scope.grants(ActionClass::Send) && !scope.grants(ActionClass::Pay));
        let again = serde_json::to_string(&scope).unwrap();
        assert_eq!(serde_json::from_str::<Scope>(&again).unwrap(), scope);
        for bad in [
            r#"{"root":"w"}"#,
            r#"{"hosts":["HTTP://x"]}"#,
            r#"{"hosts":["a:1"]}"#,
            r#"{"hosts":["*."]}"#,
            r#"{"recipients":[" "]}"#,
            r#"{"granted":["fly"]}"#,
            r#"{"host":[]}"#,
        ] {
            assert!(serde_json::from_str::<Scope>(bad).is_err(), "`{bad}`");
        }
    }
}
