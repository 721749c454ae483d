//! `surefoot sample`: what a policy says.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use agent::Codec;
use episode::random::Stream;
use episode::{Message, Role, StopReason, Token};
use indicatif::ProgressBar;
use model::Config;
use model::cache::Cache;
use policy::{Job, Jobs, PolicyError, Sampled, Sampler, Sampling};
use serde::{Deserialize, Serialize};
use tensor::attention::paged::PAGE;
use text::{Special, StreamDecoder, Tokenizer};
use train::{EngineSettings, Precision};

use crate::Done;
use crate::context::Context;
use crate::error::Failure;
use crate::jsonl::{JsonLines, Placed};
use crate::open::Located;
use crate::progress;

/// Sample text from a model, a run's checkpoint, or a model with an adapter
///
/// Each line of FILE is one of {"prompt": TEXT}, {"messages": [{"role", "content"}, …]} and {"tokens": [ID, …]}. A
/// prompt is encoded as it stands, control tokens spelled in it as ordinary text; messages go through the chat template;
/// tokens are taken as they are and need no tokenizer (without one, no token ends a sample and `text` is empty).
///
/// With --json, a line {"prompt_index", "sample", "tokens", "logprobs", "text", "stop"} is printed for each sample, in
/// the order of FILE. `tokens` includes the token that ended the sample, `text` does not. `logprobs` are under
/// softmax(logits / temperature), at temperature 1 when it is 0, before --top-k, --top-p and --min-p cut anything off;
/// no token is banned. A sample depends on the weights, its prompt, the settings, and (seed, prompt_index, sample) alone:
/// not on --batch, --threads or the processor.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A known or installed name, a GGUF file, a Hugging Face folder, or RUN[@STEP]
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// What to say to the model, as a user's message
    #[arg(value_name = "PROMPT", required_unless_present = "prompts")]
    prompt: Option<String>,
    /// Give PROMPT as it stands, without the chat template
    #[arg(long, conflicts_with = "prompts")]
    raw: bool,
    /// Prompts as JSON lines; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<String>,
    /// How products are computed: `f32` or `bf16` [default: as the run did, else `f32`]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// A folder with an adapter in PEFT's layout to put on the model
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Samples of each prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Most tokens of a sample, the one that ends it included
    #[arg(long, value_name = "K", default_value_t = 128)]
    max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 1.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Draw from the K most likely tokens only
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Draw from the smallest set of most likely tokens whose probability reaches P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Draw from tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// End a sample where its text contains TEXT; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Makes the draws; the same seed draws the same
    #[arg(long, value_name = "S", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Sequences computed at once; no result depends on it
    #[arg(long, value_name = "B", default_value_t = EngineSettings::default().batch,
        value_parser = batch_size)]
    batch: usize,
}

/// A line of the prompts' file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    prompt: Option<String>,
    messages: Option<Vec<Said>>,
    tokens: Option<Vec<Token>>,
}

/// A message; stricter than [`Message`], since a field that is passed over would change the prompt unseen.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    role: Role,
    content: String,
}

/// A line of the output.
#[derive(Debug, Serialize)]
struct Line<'a> {
    prompt_index: u64,
    sample: u64,
    tokens: &'a [Token],
    logprobs: &'a [f32],
    text: String,
    stop: StopReason,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let sampling = args.sampling()?;
    let lines = args.lines()?;
    let located = context.locate(&args.model)?;
    // Everything that can be wrong with the input is found before the weights are read.
    let tokenizer = located.tokenizer()?;
    let config = located.config()?;
    let reader = Reader { located: &located, tokenizer: tokenizer.as_ref(), config: &config, raw: args.raw };
    let prompts = reader.encode(&lines)?;
    if !args.stop.is_empty() && tokenizer.is_none() {
        return Err(located.no_tokenizer("`--stop`"));
    }
    let sampling = Sampling { stop_tokens: tokenizer.as_ref().map_or(Vec::new(), |t| t.eos().to_vec()), ..sampling };
    let settings = EngineSettings { batch: args.batch, ..EngineSettings::default() };
    let settings = EngineSettings { cache_mb: cache_mb(&config, &prompts, &sampling, &settings), ..settings };
    let mut engine = located.engine(context.cpu()?, tokenizer.clone(), args.precision, settings, args.seed)?;
    if let Some(folder) = &args.adapter {
        located.wear(&mut engine, folder)?;
    }
    context.check_stop()?;
    let n_jobs = prompts.len() as u64 * u64::from(args.n);
    let mut queue = Queue {
        context,
        tokenizer: tokenizer.as_deref(),
        sampling: Arc::new(sampling),
        n: u64::from(args.n),
        seed: args.seed,
        bare: n_jobs == 1,
        prompts,
        next: 0,
        printed: 0,
        finished: BTreeMap::new(),
        failure: None,
        bar: progress::bar(context.json(), Some(n_jobs), "samples"),
        n_tokens: 0,
    };
    let done = engine.sample(&mut queue);
    queue.bar.finish_and_clear();
    match queue.failure {
        Some(failure) => Err(failure),
        None => {
            done?;
            context.check_stop()
        }
    }
}

impl Args {
    fn sampling(&self) -> Result<Sampling, Failure> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            max_tokens: self.max_tokens,
            stop_tokens: Vec::new(),
            stop_strings: self.stop.clone(),
            banned: Vec::new(),
        };
        sampling.check().map_err(PolicyError::from)?;
        if self.stop.iter().any(String::is_empty) {
            return Err(Failure::bad("`--stop` is empty, needed at least 1 character"));
        }
        Ok(sampling)
    }

    fn lines(&self) -> Result<Vec<Placed<Prompt>>, Failure> {
        if let Some(file) = &self.prompts {
            return JsonLines::read(file)?.parse();
        }
        let text = self.prompt.clone().unwrap_or_default();
        let value = match self.raw {
            true => Prompt { prompt: Some(text), ..Prompt::default() },
            false => Prompt { messages: Some(vec![Said { role: Role::User, content: text }]), ..Prompt::default() },
        };
        Ok(vec![Placed { place: "the prompt on the command line".to_owned(), value }])
    }
}

/// Turns prompts into tokens that the model can take.
struct Reader<'a> {
    located: &'a Located,
    tokenizer: Option<&'a Arc<Tokenizer>>,
    config: &'a Config,
    raw: bool,
}

impl Reader<'_> {
    fn encode(&self, lines: &[Placed<Prompt>]) -> Result<Vec<Arc<[Token]>>, Failure> {
        let chat = match (self.tokenizer, lines.iter().any(|l| l.value.messages.is_some())) {
            (Some(tokenizer), true) => Some(self.located.chat(tokenizer).map_err(|e| {
                if self.raw { e } else { e.hint("without a chat template, give text as `prompt` or with `--raw`") }
            })?),
            _ => None,
        };
        let one = |line: &Placed<Prompt>| {
            let tokens = self.tokens(&line.value, chat.as_ref())?;
            check_tokens(&tokens, self.config, self.config.context.saturating_sub(1))?;
            Ok(Arc::from(tokens))
        };
        lines.iter().map(|line| one(line).map_err(|f: Failure| f.at(line.place.clone()))).collect()
    }

    fn tokens(&self, line: &Prompt, chat: Option<&run::Chat>) -> Result<Vec<Token>, Failure> {
        match (&line.prompt, &line.messages, &line.tokens) {
            (None, None, Some(tokens)) => Ok(tokens.clone()),
            (Some(text), None, None) => {
                let tokenizer = self.tokenizer.ok_or_else(|| self.located.no_tokenizer("`prompt`"))?;
                Ok([tokenizer.before(), &tokenizer.encode(text, Special::Literal)].concat())
            }
            (None, Some(messages), None) => {
                if messages.is_empty() {
                    return Err(Failure::bad("`messages` has 0 entries, needed at least 1"));
                }
                let chat = chat.ok_or_else(|| self.located.no_tokenizer("`messages`"))?;
                let messages: Vec<Message> = messages.iter().map(|s| Message::new(s.role, &*s.content)).collect();
                chat.open(&messages, &[]).map_err(|why| Failure::bad("the messages cannot be rendered").why(why))
            }
            (prompt, messages, tokens) => {
                let n = [prompt.is_some(), messages.is_some(), tokens.is_some()].into_iter().filter(|b| *b).count();
                Err(Failure::bad(format!("needed one of `prompt`, `messages` and `tokens`, got {n} of them")))
            }
        }
    }
}

fn batch_size(text: &str) -> Result<usize, String> {
    let in_range = text.parse().ok().filter(|n| (1..=65_536).contains(n));
    in_range.ok_or_else(|| "needed a number from 1 to 65536".to_owned())
}

/// Refuses tokens the model cannot take: none, one outside the vocabulary, more than `most`.
pub(crate) fn check_tokens(tokens: &[Token], config: &Config, most: usize) -> Result<(), Failure> {
    if tokens.is_empty() {
        return Err(Failure::bad("needed at least 1 token, got an empty prompt"));
    }
    let vocabulary = config.vocabulary;
    if let Some(at) = tokens.iter().position(|t| *t as usize >= vocabulary) {
        let token = tokens[at];
        return Err(Failure::bad(format!("token {token} at position {at} is outside the vocabulary of {vocabulary}")));
    }
    if tokens.len() > most {
        let context = config.context;
        let message = format!("needed at most {most} tokens in a context of {context}, got {}", tokens.len());
        return Err(Failure::bad(message));
    }
    Ok(())
}

/// Memory for keys and values: the usual, or what the longest sequence alone takes.
fn cache_mb(config: &Config, prompts: &[Arc<[Token]>], sampling: &Sampling, usual: &EngineSettings) -> usize {
    let longest = prompts.iter().map(|p| p.len()).max().unwrap_or(0);
    let all = longest.saturating_add(sampling.max_tokens).min(config.context);
    let pages = all.div_ceil(PAGE) + 1;
    usual.cache_mb.max((pages * Cache::new(config, 1).page_bytes()).div_ceil(1 << 20))
}

/// Hands out the samples to draw and prints them in order.
struct Queue<'a> {
    context: &'a Context,
    tokenizer: Option<&'a Tokenizer>,
    sampling: Arc<Sampling>,
    prompts: Vec<Arc<[Token]>>,
    n: u64,
    seed: u64,
    /// A single sample for a person is printed without a heading.
    bare: bool,
    next: u64,
    printed: u64,
    finished: BTreeMap<u64, Sampled>,
    failure: Option<Failure>,
    bar: ProgressBar,
    n_tokens: u64,
}

impl Jobs for Queue<'_> {
    fn next(&mut self) -> Option<Job> {
        let (index, sample) = (self.next / self.n, self.next % self.n);
        let prompt = Arc::clone(self.prompts.get(usize::try_from(index).ok()?)?);
        let stream = Stream::new("sample", &[self.seed, index, sample]);
        let job = Job { id: self.next, prompt, begun: 0, sampling: Arc::clone(&self.sampling), stream };
        self.next += 1;
        Some(job)
    }

    fn done(&mut self, result: Sampled) {
        if result.stop == StopReason::Cancelled {
            return;
        }
        self.bar.inc(1);
        self.finished.insert(result.id, result);
        while let Some(sampled) = self.finished.remove(&self.printed) {
            self.printed += 1;
            if self.failure.is_none()
                && let Err(failure) = self.print(&sampled)
            {
                self.failure = Some(failure);
            }
        }
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        let place = format!("prompt {}, sample {}", id / self.n, id % self.n);
        self.failure.get_or_insert_with(|| Failure::from(error).at(place));
    }

    fn progress(&mut self, n_tokens: usize) {
        self.n_tokens += n_tokens as u64;
        let seconds = self.bar.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_message(format!("{:.0} tokens/s", self.n_tokens as f64 / seconds));
    }

    fn cancelled(&self) -> bool {
        self.failure.is_some() || self.context.is_stopped() || self.context.out.is_closed()
    }
}

impl Queue<'_> {
    fn print(&self, sampled: &Sampled) -> Done {
        let text = self.tokenizer.map_or(Ok(String::new()), |t| text_of(t, sampled, &self.sampling.stop_strings))?;
        let (prompt_index, sample) = (sampled.id / self.n, sampled.id % self.n);
        let out = &self.context.out;
        if self.context.json() {
            let (tokens, logprobs, stop) = (&*sampled.tokens, &*sampled.logp, sampled.stop);
            return out.json(&Line { prompt_index, sample, tokens, logprobs, text, stop });
        }
        let text = if self.tokenizer.is_some() { view::visible(&text) } else { format!("{:?}", sampled.tokens) };
        self.bar.suspend(|| {
            if !self.bare {
                let (n, stop) = (sampled.tokens.len(), sampled.stop.as_str());
                out.line(format_args!("— prompt {prompt_index}, sample {sample}: {n} tokens, stopped by {stop}"))?;
            }
            out.line(text)
        })
    }
}

/// What was said: without the token that ended it, and up to the stop string that did.
fn text_of(tokenizer: &Tokenizer, sampled: &Sampled, stops: &[String]) -> Result<String, Failure> {
    let n_said = sampled.tokens.len() - usize::from(sampled.stop == StopReason::Eos);
    let said = &sampled.tokens[..n_said];
    if stops.is_empty() {
        return Ok(tokenizer.decode(said, true));
    }
    let mut decoder = StreamDecoder::new(tokenizer, true, stops)?;
    let mut text: String = said.iter().map(|t| decoder.push(*t)).collect();
    text.push_str(&decoder.finish());
    Ok(text)
}
