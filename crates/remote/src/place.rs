//! A place for tests: a folder with a store in it that knows one small model.

use crate::{KnownModel, ModelStore};

pub(crate) const ABC_SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// The bytes `abc` under a name, in a package.
pub(crate) const ABC: &[KnownModel] = &[KnownModel {
    name: "abc",
    title: "three letters",
    file: "abc.gguf",
    size_bytes: 3,
    sha256: ABC_SHA,
    licence: "MIT",
    package: "abc-package",
    package_version: "1.0",
    wheel_path: "abc_package/abc.gguf",
    download_bytes: 100,
}];

pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) store: ModelStore,
}

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let store = ModelStore::knowing(folder.path().join("models"), ABC);
        Place { folder, store }
    }
}
