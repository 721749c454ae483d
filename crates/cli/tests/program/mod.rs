//! The built program, run as a user runs it, in a home of its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a run of the program left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A home, and files of a user.
pub(crate) struct Desk {
    pub(crate) folder: tempfile::TempDir,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        Desk { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file and gives its path as text.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// The program with these words, in the desk's folder.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.args(words).current_dir(self.folder.path()).env("SUREFOOT_HOME", self.home());
        command.env_remove("SUREFOOT_ISA").env_remove("HF_ENDPOINT").env_remove("HF_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.run_with(words, b"", &[])
    }

    pub(crate) fn run_with(&self, words: &[&str], input: &[u8], variables: &[(&str, &str)]) -> Ran {
        let mut child = self.command(words).envs(variables.iter().copied()).spawn().unwrap();
        // A program that does not read its input may be gone by now.
        let _ = child.stdin.take().unwrap().write_all(input);
        ran(child.wait_with_output().unwrap())
    }

    /// As [`Desk::run`]; the program must succeed and stay silent but for its results, which are returned.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let ran = self.run(words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}\n{}", ran.out);
        ran.out
    }
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A tiny model of a family, as its golden numbers were made from.
pub(crate) fn golden(family: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(family);
    folder.canonicalize().unwrap().display().to_string()
}

/// The tiny Llama with a tokenizer of one token a character: 0 to 2 are control tokens (2 ends a turn), `!` is 3.
#[allow(dead_code, reason = "not every test file speaks to a model in words")]
pub(crate) fn speaking(desk: &Desk) -> String {
    let folder = desk.path("speaking");
    fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(&golden("llama")).join(file), folder.join(file)).unwrap();
    }
    let control = ["<|pad|>", "<|start|>", "<|end|>"];
    let mut vocabulary = serde_json::Map::new();
    for text in control {
        vocabulary.insert(text.to_owned(), vocabulary.len().into());
    }
    for c in '!'..='}' {
        vocabulary.insert(c.to_string(), vocabulary.len().into());
    }
    vocabulary.insert("Ġ".to_owned(), vocabulary.len().into());
    let added = |(id, text): (usize, &&str)| {
        serde_json::json!({
            "id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let level =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": control.iter().enumerate().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}\
                    {% if add_generation_prompt %}<|start|>assistant:{% endif %}";
    let config = serde_json::json!({"eos_token": "<|end|>", "pad_token": "<|pad|>", "chat_template": template});
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder.display().to_string()
}
