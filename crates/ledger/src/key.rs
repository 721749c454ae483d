//! The key a log signs with, and its public half.
//!
//! A key bears the name of its log. Both halves are lines of text as Go's checksum database and the C2SP tools write
//! them: `PRIVATE+KEY+name+id+base64` and `name+id+base64`, where the bytes are a 1 for Ed25519 and then the key.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

use crate::disk::sync_parent;
use crate::error::LedgerError;

/// The byte that says Ed25519. Source: c2sp.org/signed-note.
const ED25519: u8 = 1;

/// What the text of a private key begins with, so that nobody takes it for a public one.
const PRIVATE: &str = "PRIVATE+KEY+";

/// The most bytes a key's file may have.
const LONGEST_FILE: u64 = 1024;

/// The longest name of a key.
const LONGEST_NAME: usize = 255;

/// The private key of a log: signs its checkpoints.
#[derive(Clone)]
pub struct Signer {
    key: SigningKey,
    verifier: Verifier,
}

/// The public key of a log: its name is the log's origin.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    name: String,
    id: [u8; 4],
    key: VerifyingKey,
}

impl Signer {
    /// Makes a new key for the log of that name and keeps it in a new file that only its owner can read.
    ///
    /// - Errors: `KeyName`; `Io` if the file is there already.
    pub fn create(path: &Path, name: &str) -> Result<Self, LedgerError> {
        let source = Path::new("/dev/urandom");
        let mut seed = [0; 32];
        File::open(source).and_then(|mut f| f.read_exact(&mut seed)).map_err(LedgerError::io("read", source))?;
        let signer = Self::from_seed(name, seed)?;
        let text = signer.text() + "\n";
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .map_err(LedgerError::io("create", path))?;
        sync_parent(path)?;
        Ok(signer)
    }

    /// Reads a key that [`Signer::create`] wrote.
    ///
    /// - Errors: `KeyMode` if others than its owner may use it; `Key` if it is none; `Io`.
    pub fn read(path: &Path) -> Result<Self, LedgerError> {
        let file = File::open(path).map_err(LedgerError::io("read", path))?;
        let mode = file.metadata().map_err(LedgerError::io("read", path))?.mode() & 0o7777;
        if mode & 0o177 != 0 {
            return Err(LedgerError::KeyMode { path: path.to_path_buf(), got: mode });
        }
        let not_one = || LedgerError::Key { place: path.display().to_string(), needed: "private key" };
        let mut bytes = Vec::new();
        file.take(LONGEST_FILE).read_to_end(&mut bytes).map_err(LedgerError::io("read", path))?;
        let text = String::from_utf8(bytes).map_err(|_| not_one())?;
        Self::parse(text.strip_suffix('\n').unwrap_or(&text)).ok_or_else(not_one)
    }

    /// Reads the key if it is there, else makes it.
    ///
    /// - Errors: `KeyName` also if the key that is there bears another name.
    pub fn read_or_create(path: &Path, name: &str) -> Result<Self, LedgerError> {
        if !fs::exists(path).map_err(LedgerError::io("read", path))? {
            return Self::create(path, name);
        }
        let signer = Self::read(path)?;
        if signer.name() == name { Ok(signer) } else { Err(LedgerError::KeyName { got: signer.name().to_owned() }) }
    }

    /// The key that follows from a seed: whoever can guess the seed has the key.
    pub fn from_seed(name: &str, seed: [u8; 32]) -> Result<Self, LedgerError> {
        let key = SigningKey::from_bytes(&seed);
        let verifier =
            Verifier::new(name, key.verifying_key()).ok_or_else(|| LedgerError::KeyName { got: name.to_owned() })?;
        Ok(Self { key, verifier })
    }

    /// The public half.
    pub fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    /// The name of the key and of its log.
    pub fn name(&self) -> &str {
        &self.verifier.name
    }

    /// Signs some bytes.
    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }

    /// The text of the private key.
    fn text(&self) -> String {
        encode(&format!("{PRIVATE}{}", self.name()), self.verifier.id, self.key.as_bytes())
    }

    /// Reads the text of a private key.
    fn parse(text: &str) -> Option<Self> {
        let (name, id, seed) = decode(text.strip_prefix(PRIVATE)?)?;
        let signer = Self::from_seed(name, seed).ok()?;
        (signer.verifier.id == id).then_some(signer)
    }
}

impl fmt::Debug for Signer {
    /// The public half: a private key is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.verifier)
    }
}

impl Verifier {
    /// The public key of that name; none if a key cannot be called so.
    fn new(name: &str, key: VerifyingKey) -> Option<Self> {
        let named = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && !name.chars().any(|c| c.is_whitespace() || c.is_control() || c == '+');
        let hash = Sha256::new_with_prefix(name).chain_update([b'\n', ED25519]).chain_update(key.as_bytes()).finalize();
        named.then(|| Self { name: name.to_owned(), id: [hash[0], hash[1], hash[2], hash[3]], key })
    }

    /// The name of the key and of its log.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first bytes of the hash of name and key, by which a signature names its key.
    pub(crate) fn id(&self) -> [u8; 4] {
        self.id
    }

    /// Whether that is this key's signature of those bytes. Keys and signatures of small order never count: one such
    /// signature would fit many messages.
    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature).is_ok_and(|s| self.key.verify_strict(message, &s).is_ok())
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.name, self.id, self.key.as_bytes()))
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({self})")
    }
}

impl FromStr for Verifier {
    type Err = LedgerError;

    fn from_str(text: &str) -> Result<Self, LedgerError> {
        let read = || {
            let (name, id, bytes) = decode(text)?;
            let verifier = Self::new(name, VerifyingKey::from_bytes(&bytes).ok()?)?;
            (verifier.id == id).then_some(verifier)
        };
        read().ok_or_else(|| LedgerError::Key { place: text.to_owned(), needed: "public key" })
    }
}

/// `name+id+base64`.
fn encode(name: &str, id: [u8; 4], key: &[u8; 32]) -> String {
    let mut bytes = vec![ED25519];
    bytes.extend(key);
    format!("{name}+{:08x}+{}", u32::from_be_bytes(id), BASE64_STANDARD.encode(bytes))
}

/// Takes `name+id+base64` apart.
fn decode(text: &str) -> Option<(&str, [u8; 4], [u8; 32])> {
    let (name, rest) = text.split_once('+')?;
    let (id, key) = rest.split_once('+')?;
    if id.len() != 8 || !id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let id = u32::from_str_radix(id, 16).ok()?.to_be_bytes();
    let bytes = BASE64_STANDARD.decode(key).ok()?;
    match bytes.split_first()? {
        (&ED25519, key) => Some((name, id, key.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_published_keys_are_read_and_written_alike() {
        // golang.org/x/mod/sumdb/note, and the example of c2sp.org/signed-note.
        let private = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz";
        let public = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
        let signer = Signer::parse(private).unwrap();
        assert_eq!((signer.text().as_str(), signer.verifier().to_string().as_str()), (private, public));
        let example = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
        assert_eq!(example.parse::<Verifier>().unwrap().to_string(), example);
    }

    #[test]
    fn a_key_whose_text_was_changed_is_none() {
        let good = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
        for (from, to) in [
            ("Peter", "Pieter"),
            ("c74f20a3", "c74f20a4"),
            ("c74f20a3", "C74F20A3"),
            ("c74f20a3", "74f20a3"),
            ("+ARpc", "+AhPc"),
            ("ARpc", "BRpc"),
            ("10TW", "10T"),
            ("+", ""),
        ] {
            let text = good.replacen(from, to, 1);
            let error = text.parse::<Verifier>().unwrap_err();
            assert_eq!(error.to_string(), format!("`{text}` is not a public key"));
        }
    }

    #[test]
    fn a_name_that_cannot_stand_in_a_note_is_refused() {
        for name in ["", "a b", "a+b", "a\nb", "a\u{a0}b", "a\u{7}b", &"x".repeat(256)] {
            let error = Signer::from_seed(name, [1; 32]).unwrap_err();
            assert!(matches!(error, LedgerError::KeyName { got } if got == name), "{name}");
        }
        Signer::from_seed(&"x".repeat(255), [1; 32]).unwrap();
    }

    #[test]
    fn a_key_is_kept_for_its_owner_alone_and_refused_when_it_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let made = Signer::create(&path, "log.example").unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(Signer::read(&path).unwrap().verifier(), made.verifier());
        assert_eq!(Signer::read_or_create(&path, "log.example").unwrap().verifier(), made.verifier());
        assert!(
            matches!(Signer::read_or_create(&path, "other"), Err(LedgerError::KeyName { got }) if got == "log.example")
        );
        assert!(matches!(Signer::create(&path, "log.example"), Err(LedgerError::Io { action: "create", .. })));
        for mode in [0o640, 0o604, 0o620, 0o644, 0o660, 0o700] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = Signer::read(&path).unwrap_err();
            assert!(matches!(error, LedgerError::KeyMode { got, .. } if got == mode), "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        Signer::read(&path).unwrap();
        let other = Signer::create(&dir.path().join("other"), "log.example").unwrap();
        assert_ne!(other.verifier(), made.verifier());
    }

    #[test]
    fn a_file_that_is_no_key_is_refused_and_a_private_key_is_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let signer = Signer::create(&path, "log.example").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for bad in
            ["", &text[1..], &text.replace("PRIVATE+", ""), &text.replace("log.", "lag."), &(text.clone() + "\n")]
        {
            fs::write(&path, bad).unwrap();
            assert!(matches!(Signer::read(&path), Err(LedgerError::Key { needed: "private key", .. })), "{bad:?}");
        }
        let secret = text.trim().rsplit('+').next().unwrap();
        assert!(!format!("{signer:?}").contains(secret));
    }
}
