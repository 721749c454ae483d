//! `surefoot init`: a run file for one's own tasks.

use std::io::Write;
use std::path::{Path, PathBuf};

use run::RunFile;

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;

/// Write a commented run file for your own tasks
///
/// TASKS.jsonl has a line a task: {"prompt": TEXT, "gold": ANSWER} or {"messages": […], "gold": ANSWER}. Without a grader
/// program the last number of a reply is compared with `gold`; a program gets each reply as JSON on standard input and
/// answers {"reward": NUMBER}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The run file to write
    #[arg(value_name = "RUN.toml", default_value = "run.toml")]
    file: PathBuf,
    /// Your tasks
    #[arg(long, value_name = "TASKS.jsonl")]
    tasks: Option<PathBuf>,
    /// Tasks that are only tried, never trained on [default: a tenth of TASKS, chosen by content]
    #[arg(long, value_name = "FILE", requires = "tasks")]
    held_out: Option<PathBuf>,
    /// A program that grades, with its arguments
    #[arg(long, value_name = "COMMAND", num_args = 1.., requires = "tasks")]
    grader: Vec<String>,
    /// The model to train
    #[arg(long, value_name = "MODEL", default_value = "smollm2-135m")]
    model: String,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let text = text(&args, context)?;
    // What is written must run, so it is read back before it is written.
    RunFile::parse(&text)?.resolve()?;
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::bad(format!("`{}` is there already", show(&args.file))).hint("name another file")
        }
        _ => Failure::io("write", &args.file, &e),
    };
    let mut file = std::fs::File::create_new(&args.file).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    if context.json() {
        return context.out.json(&serde_json::json!({ "file": show(&args.file) }));
    }
    let file = show(&args.file);
    context.out.text(&format!(
        "wrote {file}\n\nnext:\n  surefoot env check {file}\n  surefoot train {file} --dry-run\n  surefoot train {file}\n"
    ))
}

fn text(args: &Args, context: &Context) -> Result<String, Failure> {
    let folder = args.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Paths in a run file start from its folder.
    let from_folder = |path: &Path| -> Result<String, Failure> {
        let relative = path.strip_prefix(folder).map(Path::to_owned);
        let absolute = || std::path::absolute(path).map_err(|e| Failure::io("find", path, &e));
        let path = match relative {
            Ok(relative) => relative,
            Err(_) if folder == Path::new(".") && path.is_relative() => path.to_owned(),
            Err(_) => absolute()?,
        };
        Ok(show(&path))
    };
    let quoted = |path: &Path| -> Result<String, Failure> {
        if !path.is_file() {
            return Err(Failure::bad(format!("`{}` is not a file", show(path))));
        }
        Ok(toml::Value::String(from_folder(path)?).to_string())
    };
    let models = context.models();
    let model = match Path::new(&args.model) {
        path if path.exists() && !models.is_name(&args.model) => {
            let path = from_folder(path)?;
            if models.is_name(&path) { format!("./{path}") } else { path }
        }
        _ => args.model.clone(),
    };
    let model = toml::Value::String(model);
    let mut env = String::new();
    match &args.tasks {
        None => env.push_str(
            "# Sums made from a seed; `surefoot init --tasks FILE` writes your own tasks here instead.\nkind = \"sums\"\n",
        ),
        Some(tasks) => {
            let kind = if args.grader.is_empty() { "jsonl" } else { "command" };
            env.push_str(&format!("kind = \"{kind}\"\n# A line a task: {{\"prompt\": …, \"gold\": …}}\ntasks = {}\n", quoted(tasks)?));
            match &args.held_out {
                Some(file) => env.push_str(&format!("held_out = {}\n", quoted(file)?)),
                None => env.push_str("# A tenth of the tasks, chosen by content, is only tried; `held_out = FILE` names others.\n"),
            }
            if args.grader.is_empty() {
                env.push_str("\n# Compares the last number of the reply with `gold`. Several graders add up by weight.\n");
                env.push_str("[[env.grader]]\nkind = \"last_number\"\n");
            } else {
                let words: Vec<toml::Value> = args.grader.iter().map(|w| toml::Value::String(w.clone())).collect();
                let words = toml::Value::Array(words);
                env.push_str(&format!(
                    "# Gets {{task, messages, reply, gold}} as JSON on standard input, answers {{\"reward\": NUMBER}}.\n\
                     command = {words}\n# Seconds it may take for one reply.\ndeadline_s = 10\n"
                ));
            }
        }
    }
    Ok(TEMPLATE.replace("{model}", &model.to_string()).replace("{env}", &env))
}

const TEMPLATE: &str = r#"# A run of Surefoot. `surefoot train FILE --dry-run` prints every setting with its default filled in.

# A known name, an installed one, a GGUF file, or a Hugging Face folder.
model = {model}
# Every random number follows from this.
seed = 1
steps = 20

# `lora` trains low-rank adapters, `full` all weights.
[train]
kind = "lora"
rank = 16
alpha = 32
targets = ["all"]

# `grpo` compares attempts at the same task, `reinforce` does not, `sft` learns from given answers.
[algorithm]
kind = "grpo"

[optimiser]
learning_rate = 2e-4
warmup_updates = 5

# Tasks a step, and attempts at each.
[batch]
tasks = 12
group_size = 8

[sampling]
temperature = 1.0
max_tokens = 64

# Held-out tasks are tried before, after, and every so many steps.
[eval]
tasks = 200
every = 10

[[env]]
{env}"#;
