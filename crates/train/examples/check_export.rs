//! What scripts/check_export.py asks the engine: logits, exports, tokens and rendered conversations as JSON lines.
//!
//! ```text
//! check_export logits MODEL TOKENS.jsonl [ADAPTER]         {"tokens"} a line → {"logits"} a line
//! check_export export MODEL TARGET FORMAT NAME [ADAPTER]   → {"files", "n_merged"}
//! check_export same MODEL OTHER                            → {"same", "n"}: whether all weights have the same bits
//! check_export encode MODEL TEXTS.jsonl                    {"text"} or {"messages"} a line → {"tokens", "text"} a line
//! ```

#![allow(clippy::print_stdout, reason = "it prints what it is asked for")]

use std::error::Error;
use std::path::Path;

use episode::{Message, Role};
use model::cache::{Cache, Sequence};
use model::infer::{Infer, Row};
use model::{Adapter, Params};
use serde_json::{Value, json};
use surefoot_train as train;
use tensor::weights::{Gguf, Weights};
use tensor::{Cpu, Isa};
use text::{ChatOptions, Special, Tokenizer};
use train::export::{export, vocabulary};
use train::{Engine, EngineSettings, Trainable};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["logits", model, tokens, adapter @ ..] => logits(Path::new(model), &lines(tokens)?, adapter.first().copied()),
        ["export", model, target, format, name, adapter @ ..] => {
            let engine = engine(Path::new(model), adapter.first().copied())?;
            let done = export(&engine, Path::new(model), name, Path::new(target), format.parse()?)?;
            let files: Vec<_> = done.files.iter().map(|(path, n)| json!([path, n])).collect();
            println!("{}", json!({"files": files, "n_merged": done.n_merged}));
            Ok(())
        }
        ["same", model, other] => {
            let bits = |params: &Params| -> Vec<u32> {
                let all = params.storage().into_iter().map(|s| s.into_inner());
                all.flat_map(|s| s.iter().map(|v| v.to_bits())).collect()
            };
            let (a, b) = (model::load(Path::new(model))?.1, model::load(Path::new(other))?.1);
            let (a, b) = (bits(&a), bits(&b));
            println!("{}", json!({"same": a == b, "n": a.len()}));
            Ok(())
        }
        ["encode", model, texts] => encode(&tokenizer(Path::new(model))?, &lines(texts)?),
        _ => Err("the command is none of those at the head of this file".into()),
    }
}

fn lines(path: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    Ok(std::fs::read_to_string(path)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn cpu() -> Result<Cpu, Box<dyn Error>> {
    Ok(Cpu::new(Isa::best(), std::thread::available_parallelism()?.get())?)
}

fn engine(path: &Path, adapter: Option<&str>) -> Result<Engine, Box<dyn Error>> {
    let settings = EngineSettings { cache_mb: 1, ..EngineSettings::default() };
    let mut engine = Engine::new(cpu()?, model::load(path)?, None, Trainable::Frozen {}, settings, 0)?;
    if let Some(folder) = adapter {
        engine.set_adapter(model::peft::load(Path::new(folder), engine.config())?)?;
    }
    Ok(engine)
}

fn logits(path: &Path, lines: &[Value], adapter: Option<&str>) -> Result<(), Box<dyn Error>> {
    let (config, params) = model::load(path)?;
    let adapter: Option<Adapter> = adapter.map(|a| model::peft::load(Path::new(a), &config)).transpose()?;
    let cpu = cpu()?;
    for line in lines {
        let tokens: Vec<u32> = serde_json::from_value(line["tokens"].clone())?;
        let rows: Vec<Row> = tokens.iter().map(|t| Row { token: *t, sequence: 0, wanted: true }).collect();
        let (mut cache, mut sequence) = (Cache::new(&config, 1 + tokens.len() / 8), Sequence::default());
        let mut infer = Infer::new(&config);
        let all =
            infer.step(&cpu, &config, (&params, None), adapter.as_ref(), &mut cache, &mut [&mut sequence], &rows)?;
        println!("{}", json!({"logits": all.chunks(config.vocabulary).collect::<Vec<_>>()}));
    }
    Ok(())
}

fn tokenizer(path: &Path) -> Result<Tokenizer, Box<dyn Error>> {
    if !path.is_dir()
        && let Weights::Gguf(_) = Weights::open(path)?
    {
        return Ok(Tokenizer::from_gguf(vocabulary(Gguf::open(path)?.metadata())?)?);
    }
    Ok(Tokenizer::from_folder(path)?)
}

fn encode(tokenizer: &Tokenizer, lines: &[Value]) -> Result<(), Box<dyn Error>> {
    for line in lines {
        let (tokens, text) = match line["messages"].as_array() {
            None => {
                let text = line["text"].as_str().ok_or("a line needs `text` or `messages`")?;
                (tokenizer.encode(text, Special::Parse), text.to_owned())
            }
            Some(messages) => {
                let role = |m: &Value| match m["role"].as_str() {
                    Some("system") => Role::System,
                    Some("assistant") => Role::Assistant,
                    _ => Role::User,
                };
                let content = |m: &Value| m["content"].as_str().unwrap_or_default().to_owned();
                let messages: Vec<Message> = messages.iter().map(|m| Message::new(role(m), content(m))).collect();
                let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
                let chat = tokenizer.chat().ok_or("the model has no chat template")?;
                (tokenizer.render_tokens(&messages, true)?, chat.render(&messages, &options)?)
            }
        };
        println!("{}", json!({"tokens": tokens, "text": text}));
    }
    Ok(())
}
