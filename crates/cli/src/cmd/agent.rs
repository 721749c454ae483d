//! `surefoot agent`: an agent at work in a folder, every call of which passes the gate.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::tools::{NAMES, Toolbox, Workplace, tool};
use agent::{Asks, Frame, Limits, Opening, Place, Step, Turns, drive};
use episode::{EpisodeKey, Message, Role, Task, ToolSpec};
use gate::receipt::Durable;
use gate::{Approvals, Approver, Clock, Consent, Gate, Pending, Prices, Roster};
use guard::{Autonomy, Deployment, Labels, Origin, Principal, Scope};
use policy::{Sampler, Sampling};
use serde_json::{Value, json};
use train::{EngineSettings, Precision};

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;

/// Let an agent work on a task with tools, under rules
///
/// Every call goes through the gate before it reaches a tool: the tools that were named, the rules, the budget, an approval
/// where a rule asks for one. Each attempt and each outcome leaves a receipt; `surefoot audit` reads them, `surefoot verify`
/// checks that none was changed. In a terminal approvals are asked for on the spot; `surefoot approvals` answers from
/// elsewhere.
///
/// With --json each message is a line {"role", "content", "calls"?, "tool"?}, and the last line holds `stop` and `conduct`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What it is to do
    #[arg(value_name = "TASK")]
    task: String,
    /// A known or installed name, a GGUF file, a Hugging Face folder, or RUN[@STEP]
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// The folder it works in
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Its tools: some of read_file, list_files, search_files, write_file, delete_file and shell
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "read_file,list_files,search_files")]
    tools: Vec<String>,
    /// Packs of rules, shipped ones by name or folders; the first may permit, the others can only tighten
    #[arg(long, value_name = "PACKS", value_delimiter = ',', default_value = "baseline,red-lines,workspace")]
    rules: Vec<String>,
    /// Classes of action it may do without being asked, such as `update` or `delete`, as far as rules leave it to you
    #[arg(long, value_name = "CLASSES", value_delimiter = ',')]
    grant: Vec<String>,
    /// What the agent is for, as rules see it
    #[arg(long, value_name = "TEXT", default_value = "")]
    purpose: String,
    /// Turns at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    turns: usize,
    /// Tool calls at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    calls: u64,
    /// Tokens of a turn at most
    #[arg(long, value_name = "K", default_value_t = 512)]
    max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Makes the draws; the same seed draws the same
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// How products are computed: `f32` or `bf16` [default: as the run did, else `f32`]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// Run programs without a jail, with all of your own rights
    #[arg(long)]
    no_jail: bool,
    /// Where receipts and approvals are kept [default: `agent` in SUREFOOT_HOME]
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let toolbox = args.toolbox()?;
    let specs: Arc<[ToolSpec]> = toolbox.specs().into();
    let packs = run::packs(&args.rules, Path::new("."))?;
    let record = args.record.clone().unwrap_or_else(|| context.root.join("agent"));
    let located = context.locate(&args.model)?;
    let tokenizer = located.tokenizer()?.ok_or_else(|| located.no_tokenizer("an agent"))?;
    let chat = Arc::new(located.chat(&tokenizer)?);
    let settings = EngineSettings { batch: 1, ..EngineSettings::default() };
    let mut engine = located.engine(context.cpu()?, Some(tokenizer.clone()), args.precision, settings, args.seed)?;
    let mut banned = chat.banned();
    banned.extend(tokenizer.vocab_size() as u32..engine.config().vocabulary as u32);
    let plain = Sampling::plain(args.temperature, args.max_tokens, tokenizer.eos().to_vec());
    let sampling = Sampling { banned, ..plain };
    sampling.check().map_err(policy::PolicyError::from)?;
    let user = who();
    let approvals = Approvals::open(&record.join("approvals"), Roster::person(&user)).map_err(Failure::gate)?;
    let receipts = run::receipts(&record, Durable::Each)?;
    let gate = Gate::open(gate::Settings {
        packs,
        scope: args.scope()?,
        prices: Prices::default(),
        limits: gate::Limits::default(),
        approvals: Some(approvals),
        receipts,
        clock: Clock::machine(),
    });
    let task = Task::new("agent", vec![Message::new(Role::User, &*args.task)], Value::Null, Value::Null);
    let session = format!("{}/{}", task.id, now_ms());
    let watched = std::io::stdin().is_terminal() && !context.json();
    let principal = Principal {
        subject: user.clone(),
        agent: "agent".to_owned(),
        run: session.clone(),
        purpose: args.purpose.clone(),
        deployment: Deployment::Laptop,
        autonomy: if watched { Autonomy::Supervised } else { Autonomy::Autonomous },
        chain: Vec::new(),
    };
    let opened = gate.session(gate::Opening {
        name: session,
        who: Arc::new(principal),
        tools: specs.clone(),
        declared: Default::default(),
        limits: gate::Limits { calls: Some(args.calls), ..gate::Limits::default() },
        labels: Labels::of(Origin::User),
    });
    let session = opened.map_err(Failure::gate)?;
    let start = Instant::now();
    let limits = Limits { calls: args.calls as usize, ..Limits::turns(args.turns, engine.context()) };
    let frame = Frame {
        codec: chat.clone(),
        sampling: Arc::new(sampling),
        limits,
        run_seed: args.seed,
        clock: Arc::new(move || start.elapsed()),
        asks: watched.then(|| Arc::new(Terminal { gate: gate.clone(), user }) as Arc<dyn Asks>),
    };
    let opening = Opening::new(chat.as_ref(), &task.messages, specs);
    let key = EpisodeKey { step: 0, task: task.id, sample: 0 };
    let place = Place { world: Box::new(toolbox), session: Ok(Some(session)) };
    let step: Step = Turns::begin(0, key, &opening, &frame, place);
    let mut failure = None;
    let mut heard = |messages: &[Message]| {
        for message in messages {
            let told = tell(message, context);
            failure = failure.take().or(told.err());
        }
    };
    let attempt = drive(step, &mut engine, &mut heard, &context.stop)?;
    gate.sync().map_err(Failure::gate)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if let Some(episode::Outcome::Failed { stage, cause }) = &attempt.settled {
        let why = format!("{}: {}", cause.class, cause.detail);
        return Err(Failure::failed(format!("the agent failed in `{}`", stage.as_str())).why(why));
    }
    context.check_stop()?;
    if context.json() {
        return context.out.json(&json!({ "stop": attempt.stop, "conduct": attempt.conduct, "record": show(&record) }));
    }
    let c = attempt.conduct;
    context.note(&format!("stopped: {}; {} calls, {} denied; receipts in `{}`", attempt.stop.as_str(), c.calls, c.denied, show(&record)));
    Ok(())
}

impl Args {
    /// The folder is the agent's to work in; what it may do there without being asked was granted.
    fn scope(&self) -> Result<Scope, Failure> {
        let folder = self.folder.canonicalize().map_err(|e| Failure::io("open", &self.folder, &e))?;
        let text = folder.to_str().ok_or_else(|| Failure::bad("`--folder` is no text"))?;
        let scope = Scope::default().rooted_at(text).map_err(Failure::gate)?;
        self.grant.iter().try_fold(scope, |scope, class| scope.granting(class)).map_err(|e| Failure::gate(e).at("`--grant`"))
    }

    fn toolbox(&self) -> Result<Toolbox, Failure> {
        if !self.folder.is_dir() {
            return Err(Failure::bad(format!("`{}` is no folder", show(&self.folder))).at("`--folder`"));
        }
        let place = Workplace { folder: self.folder.clone(), unjailed: self.no_jail };
        let mut toolbox = Toolbox::new();
        for name in &self.tools {
            let tool = tool(name, &place).ok_or_else(|| {
                let known: Vec<String> = NAMES.iter().map(|n| format!("`{n}`")).collect();
                Failure::bad(format!("there is no tool `{name}`, needed some of {}", known.join(", "))).at("`--tools`")
            })?;
            toolbox.add(tool).map_err(|name| Failure::bad(format!("`{name}` is there twice")).at("`--tools`"))?;
        }
        Ok(toolbox)
    }
}

/// The account that this process runs as: what the system vouches for, whatever variables say.
pub(crate) fn who() -> String {
    use std::os::unix::fs::MetadataExt;
    let uid = std::fs::metadata("/proc/self").map_or(0, |m| m.uid());
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_uid = |line: &&str| line.split(':').nth(2) == Some(&uid.to_string());
    let name = accounts.lines().find(of_uid).and_then(|line| line.split(':').next());
    name.map_or_else(|| format!("uid-{uid}"), str::to_owned)
}

/// Prints a message.
fn tell(message: &Message, context: &Context) -> Done {
    if context.json() {
        return context.out.json(message);
    }
    let mut text = match message.content.is_empty() {
        true => String::new(),
        false => format!("{}: {}\n", message.role.as_str(), message.content),
    };
    for call in &message.calls {
        text.push_str(&format!("  → {} {}\n", call.tool, Value::Object(call.arguments.clone())));
    }
    context.out.text(&view::visible(&text))
}

/// Asks the person at the terminal.
struct Terminal {
    gate: Gate,
    user: String,
}

impl Asks for Terminal {
    fn ask(&self, pending: &Pending) -> bool {
        let Some(approvals) = self.gate.approvals() else { return false };
        let call = format!("{} {}", pending.tool, Value::Object(pending.arguments.clone()));
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "{}", view::visible(&format!("\n{}\n  {call}\nMay it? [y/N] ", pending.reason)));
        let _ = err.flush();
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).is_err() {
            return false;
        }
        let consent = match line.trim() {
            "y" | "Y" | "yes" => Consent::Grant,
            _ => Consent::Refuse,
        };
        let approver = Approver::Person(self.user.clone());
        match approvals.answer(&pending.id, &approver, consent, now_ms()) {
            Ok(_) => true,
            Err(error) => {
                let _ = writeln!(err, "{}", view::visible(&error.to_string()));
                false
            }
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_millis() as u64
}
