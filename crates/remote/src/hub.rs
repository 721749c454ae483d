//! Models from a Hugging Face hub, or from any server that answers like one.
//!
//! - Source: the hub's API, `GET /api/models/ORG/NAME/revision/REV?blobs=true` and `GET /ORG/NAME/resolve/COMMIT/FILE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::http::Client;
use crate::part::Wanted;
use crate::record::{HUB_PREFIX, is_plain_file_name};
use crate::select::{self, select};
use crate::staging::{LOCK_WAIT, Lock, Staging};
use crate::{FileRecord, ModelStore, Pulled, RemoteError, Watch, disk};

/// The largest list of files and the largest index of shards that is read.
const MAX_LIST_BYTES: usize = 64 << 20;

/// A secret that opens private repositories; it never appears in messages or records.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes a token as the hub issued it.
    ///
    /// - Errors: [`RemoteError::BadSetting`] for what cannot be one: nothing, spaces, line ends, anything not ASCII.
    pub fn new(text: &str) -> Result<Token, RemoteError> {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            let reason = "needed printable ASCII without spaces".to_string();
            return Err(RemoteError::BadSetting { setting: "access token", reason });
        }
        Ok(Token(text.to_string()))
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Where the hub is and how patient we are with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// Scheme, host and perhaps port, as in `https://host`.
    pub endpoint: String,
    /// For private repositories.
    pub token: Option<Token>,
    /// How many attempts in a row may bring nothing.
    pub attempts: u32,
    /// The wait after the first failed attempt; doubles with each.
    pub backoff: Duration,
    /// How long the server may be silent.
    pub stall: Duration,
}

impl Default for HubSettings {
    fn default() -> Self {
        HubSettings {
            endpoint: "https://huggingface.co".to_string(),
            token: None,
            attempts: 5,
            backoff: Duration::from_secs(1),
            stall: Duration::from_secs(30),
        }
    }
}

impl HubSettings {
    /// The defaults with `HF_ENDPOINT` and `HF_TOKEN` where they are set and not empty.
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<HubSettings, RemoteError> {
        let get = |name: &str| env(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let mut settings = HubSettings::default();
        if let Some(endpoint) = get("HF_ENDPOINT") {
            settings.endpoint = endpoint;
        }
        settings.token = get("HF_TOKEN").map(|t| Token::new(&t)).transpose()?;
        Ok(settings)
    }

    fn endpoint(&self) -> Result<Endpoint<'_>, RemoteError> {
        let base = self.endpoint.trim_end_matches('/');
        let bad = |reason: String| RemoteError::BadSetting { setting: "hub endpoint", reason };
        let (secure, rest) = match (base.strip_prefix("https://"), base.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            // Not shown: it may be a secret in the wrong place.
            _ => return Err(bad("needed an address that begins with `https://` or `http://`".to_string())),
        };
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.is_empty() || authority.contains('@') || rest.contains(['?', '#', ' ']) {
            return Err(bad("needed a host without user, query or fragment".to_string()));
        }
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let near = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if self.token.is_some() && !secure && !near {
            return Err(bad(format!("a token is sent over `https` only, got `{base}`")));
        }
        Ok(Endpoint { base, secure, near })
    }
}

/// A checked endpoint.
pub(crate) struct Endpoint<'a> {
    /// Without a slash at its end.
    pub(crate) base: &'a str,
    /// Whether it speaks `https`.
    pub(crate) secure: bool,
    /// Whether it is on this machine.
    pub(crate) near: bool,
}

/// A repository and what is asked of it.
#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    org: &'a str,
    name: &'a str,
    rev: &'a str,
}

impl<'a> Reference<'a> {
    fn parse(text: &'a str) -> Result<Self, RemoteError> {
        let bad = |reason| RemoteError::BadReference { reference: text.to_string(), reason };
        let rest = text.strip_prefix("hf:").ok_or_else(|| bad("got another beginning"))?;
        let (path, rev) = rest.split_once('@').unwrap_or((rest, "main"));
        let (org, name) = path.split_once('/').ok_or_else(|| bad("got no `/`"))?;
        let word = |w: &str, more: &[u8]| {
            w.len() <= 96
                && w.starts_with(|c: char| c.is_ascii_alphanumeric())
                && !w.contains("..")
                && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b) || more.contains(&b))
        };
        if !word(org, b"") || !word(name, b"") || org.contains("--") || name.contains("--") {
            return Err(bad("got a part that is empty, too long or has characters no repository has"));
        }
        if !word(rev, b"/") {
            return Err(bad("got a revision that is empty, too long or has characters no revision has"));
        }
        Ok(Reference { org, name, rev })
    }

    /// The store's name for one commit of the repository.
    fn installed_name(&self, commit: &str) -> String {
        format!("{HUB_PREFIX}{}--{}@{commit}", self.org, self.name)
    }
}

/// The hub's answer, as far as it matters here.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
    #[serde(rename = "cardData")]
    card: Option<Card>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: Option<u64>,
}

#[derive(Deserialize)]
struct Card {
    license: Option<serde_json::Value>,
}

/// A repository at one commit.
struct Repository {
    /// What the user called it, for messages.
    reference: String,
    commit: String,
    licence: Option<String>,
    /// Size and SHA-256 of each file, where they are known.
    files: BTreeMap<String, (Option<u64>, Option<String>)>,
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl Repository {
    fn read(url: &str, reference: &str, body: &[u8]) -> Result<Repository, RemoteError> {
        let bad = |reason: String| RemoteError::BadAnswer { url: url.to_string(), reason };
        let listing: Listing = serde_json::from_slice(body).map_err(|e| bad(e.to_string()))?;
        if !is_commit(&listing.sha) {
            return Err(bad(format!("needed a commit of 40 hexadecimal digits, got `{}`", listing.sha)));
        }
        let mut files = BTreeMap::new();
        for file in listing.siblings {
            // Folders inside are no concern of ours, but a name that leaves its folder marks a hostile list.
            if file.rfilename.split(['/', '\\']).any(|part| matches!(part, "" | "." | "..")) {
                return Err(bad(format!("it lists `{}`, a name that leaves its folder", file.rfilename)));
            }
            let sha256 = file.lfs.as_ref().map(|l| l.sha256.trim_start_matches("sha256:").to_ascii_lowercase());
            if let Some(sha) = &sha256
                && !(sha.len() == 64 && sha.bytes().all(|b| b.is_ascii_hexdigit()))
            {
                return Err(bad(format!("needed a SHA-256 for `{}`, got `{sha}`", file.rfilename)));
            }
            files.insert(file.rfilename, (file.lfs.and_then(|l| l.size).or(file.size), sha256));
        }
        let licence = listing.card.and_then(|c| c.license).and_then(|l| match l {
            serde_json::Value::String(one) => Some(one),
            serde_json::Value::Array(many) => {
                Some(many.iter().filter_map(|l| l.as_str()).collect::<Vec<_>>().join(", ")).filter(|l| !l.is_empty())
            }
            _ => None,
        });
        Ok(Repository { reference: reference.to_string(), commit: listing.sha, licence, files })
    }

    fn plain_names(&self) -> BTreeSet<&str> {
        self.files.keys().map(String::as_str).filter(|n| is_plain_file_name(n)).collect()
    }
}

/// Makes sure that a commit of a hub's repository is there.
pub(crate) fn pull(
    store: &ModelStore,
    reference: &str,
    settings: &HubSettings,
    watch: Watch<'_>,
) -> Result<Pulled, RemoteError> {
    let parsed = Reference::parse(reference)?;
    let endpoint = settings.endpoint()?;
    let pulled = |name: &str, path, fetched| Ok(Pulled { name: name.to_string(), path, fetched });
    // A whole commit needs no question to the hub.
    let exact = is_commit(parsed.rev).then(|| parsed.installed_name(parsed.rev));
    if let Some(name) = &exact
        && let Some(path) = store.intact(name, watch)?
    {
        return pulled(name, path, false);
    }
    let client = Client::new(settings, &endpoint);
    let Reference { org, name, rev } = parsed;
    let url = format!("{}/api/models/{org}/{name}/revision/{}?blobs=true", endpoint.base, encode(rev));
    let repository = Repository::read(&url, reference, &client.get(&url, reference, MAX_LIST_BYTES, watch)?)?;
    let name = parsed.installed_name(&repository.commit);
    if exact.as_ref().is_some_and(|exact| *exact != name) {
        let reason = format!("needed commit {rev}, got {}", repository.commit);
        return Err(RemoteError::BadAnswer { url, reason });
    }
    // What cannot be a model fails before anything is written.
    select(reference, &repository.plain_names())?;
    let lock = Lock::take(store.folder(), &name, LOCK_WAIT, Some(watch))?;
    if let Some(path) = store.intact(&name, watch)? {
        return pulled(&name, path, false);
    }
    let staging = Staging::open(store.folder(), &name, lock, true)?;
    let base = format!("{}/{org}/{}/resolve/{}", endpoint.base, parsed.name, repository.commit);
    let files = fetch_all(&client, &base, &repository, &staging, watch)?;
    let source = format!("hf:{org}/{}@{}", parsed.name, repository.commit);
    let path = staging.commit(source, repository.licence, files)?;
    pulled(&name, path, true)
}

fn fetch_all(
    client: &Client<'_>,
    base: &str,
    repository: &Repository,
    staging: &Staging<'_>,
    watch: Watch<'_>,
) -> Result<Vec<FileRecord>, RemoteError> {
    let names = repository.plain_names();
    let chosen = select(&repository.reference, &names)?;
    let mut records = Vec::new();
    for file in &chosen.files {
        records.push(fetch(client, base, repository, file, staging, watch)?);
    }
    if chosen.sharded {
        let index = staging.folder().join(select::INDEX);
        let size = disk::size_if_there(&index)?.unwrap_or(0);
        if size > MAX_LIST_BYTES as u64 {
            let reason = format!("`{}` has {size} bytes, needed at most {MAX_LIST_BYTES}", select::INDEX);
            return Err(RemoteError::NotAModel { place: repository.reference.clone(), reason });
        }
        let bytes = std::fs::read(&index).map_err(RemoteError::io("read", &index))?;
        for shard in select::shards(&repository.reference, &bytes, &names)? {
            records.push(fetch(client, base, repository, &shard, staging, watch)?);
        }
    }
    Ok(records)
}

/// Fetches one file, unless an earlier attempt finished it.
fn fetch(
    client: &Client<'_>,
    base: &str,
    repository: &Repository,
    name: &str,
    staging: &Staging<'_>,
    watch: Watch<'_>,
) -> Result<FileRecord, RemoteError> {
    let (size_bytes, sha256) = repository.files.get(name).cloned().unwrap_or_default();
    let place = staging.folder().join(name);
    if let Some(size) = disk::size_if_there(&place)? {
        let got = disk::hash(staging.folder(), name, watch)?;
        // It was renamed here only after it was checked; this finds what happened to it since.
        if size_bytes.is_none_or(|needed| needed == size) && sha256.as_ref().is_none_or(|needed| *needed == got.sha256)
        {
            return Ok(got);
        }
        disk::remove_file(&place)?;
    }
    let url = format!("{base}/{}", encode(name));
    let folder = staging.folder();
    client.download(&Wanted { url: &url, name, folder, size_bytes, sha256: sha256.as_deref() }, watch)
}

/// Percent-encodes one segment of a path.
fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
