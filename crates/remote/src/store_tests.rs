use std::sync::atomic::AtomicBool;

use super::*;
use crate::Quiet;
use crate::place::{ABC_SHA, Place};

impl Place {
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn import(&self, path: &Path, name: &str) -> Result<ModelRecord, RemoteError> {
        self.store.import(path, name, Watch::new(&Quiet, &AtomicBool::new(false)))
    }

    fn verify(&self, name: &str) -> Result<ModelRecord, RemoteError> {
        self.store.verify(name, Watch::new(&Quiet, &AtomicBool::new(false)))
    }

    fn names(&self) -> Vec<String> {
        self.store.list().unwrap().into_iter().map(|m| m.name).collect()
    }
}

#[test]
fn an_imported_file_is_found_by_its_name_and_goes_again() {
    let place = Place::new();
    let path = place.file("some.gguf", "abc");
    let record = place.import(&path, "mine").unwrap();
    assert_eq!(record.source, format!("import:{}", path.display()));
    assert_eq!(record.files, [FileRecord { file: "some.gguf".into(), size_bytes: 3, sha256: ABC_SHA.into() }]);
    assert!(record.installed_unix_s > 1_600_000_000);
    assert_eq!(place.store.resolve("mine").unwrap(), place.store.folder().join("mine/some.gguf"));
    assert_eq!(place.verify("mine").unwrap(), record);
    assert_eq!(place.store.info("mine").unwrap(), record);
    // A copy: what happens to the original does not matter.
    fs::write(&path, "xyz").unwrap();
    place.verify("mine").unwrap();
    assert!(place.store.remove("mine").unwrap() > 3);
    assert!(place.names().is_empty());
    assert!(path.exists());
    assert!(matches!(place.store.remove("mine"), Err(RemoteError::UnknownModel { .. })));
}

#[test]
fn a_folder_is_imported_with_its_shards_and_without_the_rest() {
    let place = Place::new();
    for (name, text) in [
        ("m/config.json", "{}"),
        ("m/tokenizer.json", "{}"),
        ("m/model.safetensors.index.json", r#"{"weight_map":{"a":"s1.safetensors"}}"#),
        ("m/s1.safetensors", "one"),
        ("m/optimizer.pt", "no"),
        ("m/model.json", "not ours"),
    ] {
        place.file(name, text);
    }
    let record = place.import(&place.folder.path().join("m"), "m1").unwrap();
    let files: Vec<&str> = record.files.iter().map(|f| f.file.as_str()).collect();
    assert_eq!(files, ["config.json", "model.safetensors.index.json", "s1.safetensors", "tokenizer.json"]);
    assert_eq!(place.store.resolve("m1").unwrap(), place.store.folder().join("m1"));
    fs::remove_file(place.folder.path().join("m/s1.safetensors")).unwrap();
    let error = place.import(&place.folder.path().join("m"), "m2").unwrap_err().to_string();
    assert!(error.ends_with("names `s1.safetensors`, which is not there"), "{error}");
    assert_eq!(place.names(), ["m1"]);
}

#[test]
fn a_known_name_takes_its_own_bits_only() {
    let place = Place::new();
    let wrong = place.file("wrong.gguf", "abd");
    let error = place.import(&wrong, "abc").unwrap_err().to_string();
    assert!(error.contains(&format!("has the wrong SHA-256: needed {ABC_SHA}")), "{error}");
    let folder = place.folder.path().to_path_buf();
    let error = place.import(&folder, "abc").unwrap_err().to_string();
    assert!(error.ends_with("this name means one file, got a folder"), "{error}");
    assert!(place.names().is_empty());
    // The name of the file does not matter, its bits do.
    let right = place.file("download.bin", "abc");
    let record = place.import(&right, "abc").unwrap();
    assert_eq!(record.licence.as_deref(), Some("MIT"));
    assert_eq!(place.store.resolve("abc").unwrap(), place.store.folder().join("abc/abc.gguf"));
    // A record that claims other bits under this name is not believed.
    let path = place.store.folder().join("abc/model.json");
    let text = fs::read_to_string(&path).unwrap().replace(ABC_SHA, &ABC_SHA.replace('b', "0"));
    fs::write(&path, text).unwrap();
    let error = place.store.resolve("abc").unwrap_err().to_string();
    assert!(error.contains("got that of another file"), "{error}");
    // The right bits repair it.
    place.import(&right, "abc").unwrap();
    place.verify("abc").unwrap();
}

#[test]
fn a_name_never_changes_its_bits() {
    let place = Place::new();
    let (one, two) = (place.file("m.gguf", "one"), place.file("other/m.gguf", "two"));
    let record = place.import(&one, "m").unwrap();
    assert_eq!(place.import(&one, "m").unwrap(), record, "the same again changes nothing");
    let error = place.import(&two, "m").unwrap_err();
    assert_eq!(error.to_string(), "model `m` is there already with other contents");
    assert_eq!(error.hint().unwrap(), "`surefoot models rm m` removes it");
    assert_eq!(place.verify("m").unwrap(), record);
    // Nor does damage make room for others.
    fs::write(place.store.folder().join("m/m.gguf"), "on").unwrap();
    assert!(matches!(place.import(&two, "m"), Err(RemoteError::NameTaken { .. })));
    assert_eq!(place.import(&one, "m").unwrap().files, record.files);
    place.verify("m").unwrap();
}

#[test]
fn paths_are_taken_as_they_are_and_names_come_first() {
    let place = Place::new();
    let file = place.file("x.gguf", "abc");
    assert_eq!(place.store.resolve(file.to_str().unwrap()).unwrap(), file);
    let folder = place.folder.path();
    assert_eq!(place.store.resolve(folder.to_str().unwrap()).unwrap(), folder);
    let error = place.store.resolve("abc").unwrap_err();
    let store = place.store.folder().display();
    assert_eq!(error.to_string(), format!("model `abc` is not installed in `{store}`"));
    assert_eq!(error.hint().unwrap(), "`surefoot models pull abc` fetches it");
    place.import(&file, "mine").unwrap();
    for (bad, shown) in [("nothing", "nothing"), ("", ""), ("../models", "../models"), ("./abc", "./abc"), ("..", "")] {
        if bad == ".." {
            // A path that is there, not a name.
            assert_eq!(place.store.resolve(bad).unwrap(), Path::new(".."));
            continue;
        }
        let error = place.store.resolve(bad).unwrap_err();
        let want =
            format!("no model `{shown}`: needed a file or folder, a known name (`abc`) or an installed one (`mine`)");
        assert_eq!(error.to_string(), want);
        assert!(error.hint().unwrap().starts_with("`surefoot models pull abc`"));
    }
}

#[test]
fn nothing_outside_the_store_can_be_reached_by_a_name() {
    let place = Place::new();
    let outside = place.file("outside/model.json", "{}");
    place.import(&place.file("x.gguf", "x"), "x").unwrap();
    for bad in ["../outside", "..", ".", "", "/", ".lock-x", "x/../../outside"] {
        assert!(matches!(place.store.remove(bad), Err(RemoteError::BadName { .. })), "{bad}");
        assert!(place.store.info(bad).is_err() && place.verify(bad).is_err(), "{bad}");
        assert!(place.import(&outside, bad).is_err(), "{bad}");
    }
    assert!(outside.exists());
    for taken in ["hf-a--b", "a@b", "a b", "-a"] {
        assert!(matches!(place.import(&outside, taken), Err(RemoteError::BadName { .. })), "{taken}");
    }
    // A record that points elsewhere is refused before a file is opened.
    let path = place.store.folder().join("x/model.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"x.gguf\"", "\"../../outside/model.json\"");
    fs::write(&path, text).unwrap();
    let error = place.verify("x").unwrap_err().to_string();
    assert!(error.contains("which is not a plain file name"), "{error}");
    assert_eq!(place.names(), ["x"], "a damaged model is still listed");
    assert!(place.store.list().unwrap()[0].record.is_err());
    // A link in the place of a model is not followed.
    std::os::unix::fs::symlink(place.folder.path().join("outside"), place.store.folder().join("link")).unwrap();
    assert!(place.store.remove("link").is_ok());
    assert!(outside.exists());
}

#[test]
fn damage_is_found_and_named() {
    let place = Place::new();
    place.import(&place.file("m.gguf", "abc"), "m").unwrap();
    let path = place.store.folder().join("m/m.gguf");
    let check = |text: Option<&str>, resolves: bool, want: &str| {
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = place.verify("m").unwrap_err();
        assert_eq!(error.to_string(), format!("model file `{}` is damaged: {want}", path.display()));
        assert_eq!(place.store.resolve("m").is_ok(), resolves);
        assert!(error.hint().unwrap().contains("models rm"));
    };
    let abd = "a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9";
    check(Some("abd"), true, &format!("needed SHA-256 {ABC_SHA}, got {abd}"));
    check(Some("ab"), false, "needed 3 bytes, got 2");
    check(None, false, "it is missing");
}

#[test]
fn a_record_of_another_kind_is_refused() {
    let place = Place::new();
    place.import(&place.file("m.gguf", "abc"), "m").unwrap();
    let path = place.store.folder().join("m/model.json");
    let good = fs::read_to_string(&path).unwrap();
    let check = |from: &str, to: &str, want: &str| {
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let error = place.store.info("m").unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    check("\"format\": 1", "\"format\": 2", "needed format 1, got 2");
    check("\"name\": \"m\"", "\"name\": \"n\"", "needed the record of `m`, got that of `n`");
    check("\"licence\"", "\"license\"", "unknown field `license`");
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(place.store.info("m").unwrap_err().to_string().contains("is damaged: EOF"));
}

#[test]
fn what_another_process_holds_is_not_removed() {
    let place = Place::new();
    place.import(&place.file("m.gguf", "abc"), "m").unwrap();
    let lock = Lock::take(place.store.folder(), "m", Duration::ZERO, None).unwrap();
    let error = place.store.remove("m").unwrap_err().to_string();
    assert!(error.starts_with("another process has been working on model `m` for 0 s"), "{error}");
    place.verify("m").unwrap();
    drop(lock);
    place.store.remove("m").unwrap();
}

#[test]
fn leftovers_of_an_interrupted_pull_can_be_removed() {
    let place = Place::new();
    let left = staging_folder(place.store.folder(), "hf-a--b@c");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join(".x.part"), "12345").unwrap();
    assert_eq!(place.store.remove("hf-a--b@c").unwrap(), 5);
    assert!(!left.exists());
}

#[test]
fn only_what_can_be_a_model_is_imported() {
    let place = Place::new();
    let error = place.import(&place.file("x.bin", "x"), "x").unwrap_err().to_string();
    assert!(error.ends_with("needed a file whose name ends in `.gguf`, or a folder"), "{error}");
    let error = place.import(&place.folder.path().join("nowhere"), "x").unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
    fs::create_dir(place.folder.path().join("empty")).unwrap();
    let error = place.import(&place.folder.path().join("empty"), "x").unwrap_err().to_string();
    assert!(error.ends_with("needed `config.json`, got none"), "{error}");
    assert!(!place.store.folder().exists(), "nothing was begun");
}

#[test]
fn unknown_names_cannot_be_pulled() {
    let place = Place::new();
    let watch_flag = AtomicBool::new(false);
    let error = place.store.pull("gpt", &PullSettings::default(), Watch::new(&Quiet, &watch_flag)).unwrap_err();
    assert!(error.to_string().starts_with("no model `gpt`"), "{error}");
}

#[test]
fn a_store_that_cannot_be_written_says_so() {
    let place = Place::new();
    let file = place.file("m.gguf", "abc");
    let blocked = ModelStore::new(file.join("models"));
    let flag = AtomicBool::new(false);
    let error = blocked.import(&file, "m", Watch::new(&Quiet, &flag)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot create `{}`", file.join("models").display())), "{error}");
}
