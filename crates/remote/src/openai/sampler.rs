//! The sampler: many requests at once, each answered, refused or given back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use episode::{StopReason, Token};
use policy::{Job, Jobs, PolicyError, Sampled, Sampler};
use reqwest::Method;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::{Mode, OpenAiError, OpenAiSettings, Purpose, Recorded, WantedMode, chat, tokens};
use crate::wire::{Line, Repeat, Seam, Secret, Site, WireError};

/// The longest time between two looks at whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// What the requests share.
#[derive(Debug)]
struct Endpoint {
    line: Line,
    site: Site,
    settings: OpenAiSettings,
}

/// A policy behind an endpoint.
#[derive(Debug)]
pub struct OpenAi {
    seam: Seam,
    endpoint: Arc<Endpoint>,
    mode: Mode,
    why_chat: Option<OpenAiError>,
    version: u32,
}

impl OpenAi {
    /// Asks the endpoint what it can do.
    ///
    /// - Errors: [`OpenAiError`] when it cannot be used as the settings say; with [`WantedMode::Auto`] one that gives no
    ///   complete record is spoken to in messages, unless it is for training.
    pub fn connect(settings: OpenAiSettings, secret: Option<Secret>) -> Result<OpenAi, OpenAiError> {
        settings.check()?;
        let site = Site::parse(&settings.address, ["https://", "http://"], secret.as_ref())?;
        let line = Line::new(&site, secret, settings.patience)?;
        let seam = Seam::start("openai")?;
        let endpoint = Arc::new(Endpoint { line, site, settings });
        let asking = endpoint.clone();
        let (mode, why_chat) = seam.run(async move { asking.find_out().await })??;
        Ok(OpenAi { seam, endpoint, mode, why_chat, version: 0 })
    }

    /// How it is spoken to.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it is spoken to in messages, where that was found out and not set.
    pub fn why_chat(&self) -> Option<&OpenAiError> {
        self.why_chat.as_ref()
    }

    /// Whether its episodes may be trained on.
    pub fn trains(&self) -> bool {
        matches!(self.mode, Mode::Tokens { .. }) && self.endpoint.settings.purpose == Purpose::Training
    }

    /// What to write beside its episodes.
    pub fn recorded(&self) -> Recorded {
        let address = self.endpoint.site.base.clone();
        let model = self.endpoint.settings.model.clone();
        Recorded { address, model, mode: self.mode, log_probabilities: self.trains() }
    }

    /// Sets the version that what it samples is recorded under.
    pub fn set_version(&mut self, version: u32) {
        self.version = version;
    }

    /// The log-probability, at temperature 1, of each token but the first.
    ///
    /// - Shapes: `tokens` `[T]` → `[T-1]`.
    /// - Units: nats.
    /// - Errors: `NoRecord` when the endpoint does not give them; a missing or odd one is refused, never filled in.
    pub fn score(&self, tokens: &[Token]) -> Result<Vec<f32>, OpenAiError> {
        let settings = &self.endpoint.settings;
        if !matches!(self.mode, Mode::Tokens { scores: true, .. }) {
            let reason = "it does not give `prompt_logprobs`".to_owned();
            return Err(OpenAiError::NoRecord { model: settings.model.clone(), reason });
        }
        if tokens.len() >= settings.context {
            return Err(OpenAiError::Context { needed: tokens.len() + 1, context: settings.context });
        }
        let (endpoint, tokens) = (self.endpoint.clone(), tokens.to_vec());
        self.seam.run(async move {
            let url = endpoint.site.at("completions");
            let answer = endpoint.post(&url, &tokens::score_request(&endpoint.settings, &tokens)).await;
            let answer = answer.map_err(|e| OpenAiError::of(e, endpoint.settings.context))?;
            tokens::read_scores(&url, &answer, &tokens)
        })?
    }

    /// Sends a job on its way.
    fn begin(&self, key: u64, job: &Job, tell: &mpsc::Sender<(u64, Answer)>) -> Result<AbortHandle, OpenAiError> {
        let settings = &self.endpoint.settings;
        if job.prompt.len() >= settings.context {
            return Err(OpenAiError::Context { needed: job.prompt.len() + 1, context: settings.context });
        }
        let (body, path) = match self.mode {
            Mode::Tokens { scale, .. } => (tokens::request(settings, scale, job)?, "completions"),
            Mode::Chat { new_limit } => (chat::request(settings, new_limit, job)?, "chat/completions"),
        };
        let (endpoint, tell, url) = (self.endpoint.clone(), tell.clone(), self.endpoint.site.at(path));
        Ok(self.seam.spawn(async move {
            let answer = endpoint.post(&url, &body).await;
            // Nobody listens any more when the sampler was told to stop.
            drop(tell.send((key, Answer { url, body: answer })));
        }))
    }

    fn read(&self, job: &Job, answer: Answer) -> Result<Sampled, OpenAiError> {
        let settings = &self.endpoint.settings;
        let body = answer.body.map_err(|e| OpenAiError::of(e, settings.context))?;
        match self.mode {
            Mode::Tokens { .. } => tokens::read(settings, &answer.url, &body, job, self.version),
            Mode::Chat { .. } => chat::read(&answer.url, &body, job, self.version),
        }
    }

    /// A job given back without a token.
    fn nothing(&self, job: &Job) -> Sampled {
        let stop = StopReason::Cancelled;
        Sampled { id: job.id, tokens: vec![], logp: vec![], logp_t1: vec![], stop, version: self.version }
    }
}

/// What came back for a job.
struct Answer {
    url: String,
    body: Result<Vec<u8>, WireError>,
}

impl Endpoint {
    async fn post(&self, url: &str, body: &Value) -> Result<Vec<u8>, WireError> {
        let bytes = serde_json::to_vec(body).expect("JSON values always serialise");
        // Sampling changes nothing at the endpoint and each job takes one answer, so asking again is harmless.
        self.line.ask(Method::POST, url, Some(&bytes), Repeat::Harmless).await
    }

    async fn find_out(&self) -> Result<(Mode, Option<OpenAiError>), OpenAiError> {
        let settings = &self.settings;
        if settings.mode == WantedMode::Chat {
            return Ok((self.try_chat().await?, None));
        }
        let why = match self.try_tokens().await {
            Ok(mode) => return Ok((mode, None)),
            // A server that cannot be reached or refuses the secret says nothing about what it could do.
            Err(e) if e.stops_everything() || is_out_of_reach(&e) => return Err(e),
            Err(why) => why,
        };
        if settings.mode == WantedMode::Tokens || settings.purpose == Purpose::Training {
            return Err(OpenAiError::NoRecord { model: settings.model.clone(), reason: why.to_string() });
        }
        Ok((self.try_chat().await?, Some(why)))
    }

    async fn try_tokens(&self) -> Result<Mode, OpenAiError> {
        let url = self.site.at("completions");
        let scale = tokens::probed(&url, &self.post(&url, &tokens::probe(&self.settings)).await?)?;
        let scores = match self.post(&url, &tokens::score_probe(&self.settings)).await {
            Ok(answer) => tokens::score_probed(&url, &answer),
            // Not needed to sample; whoever asks for scores is told.
            Err(_) => false,
        };
        Ok(Mode::Tokens { scale, scores })
    }

    async fn try_chat(&self) -> Result<Mode, OpenAiError> {
        let url = self.site.at("chat/completions");
        match self.post(&url, &chat::probe(&self.settings, false)).await {
            Ok(_) => Ok(Mode::Chat { new_limit: false }),
            Err(error) if chat::wants_new_limit(&error) => {
                self.post(&url, &chat::probe(&self.settings, true)).await?;
                Ok(Mode::Chat { new_limit: true })
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn is_out_of_reach(error: &OpenAiError) -> bool {
    use WireError::{BadSetting, Deadline, Machine, Unreachable};
    matches!(error, OpenAiError::Wire(BadSetting { .. } | Deadline { .. } | Machine { .. } | Unreachable { .. }))
}

/// Requests under way, by the order in which they were begun; dropping stops them.
#[derive(Default)]
struct UnderWay(BTreeMap<u64, (Job, AbortHandle)>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.values().for_each(|(_, handle)| handle.abort());
    }
}

impl UnderWay {
    /// Stops all and gives the jobs back.
    fn stop(&mut self) -> impl Iterator<Item = Job> {
        std::mem::take(&mut self.0).into_values().map(|(job, handle)| {
            handle.abort();
            job
        })
    }
}

impl Sampler for OpenAi {
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        let (tell, heard) = mpsc::channel();
        let mut under_way = UnderWay::default();
        let mut next_key = 0;
        loop {
            if jobs.cancelled() {
                under_way.stop().for_each(|job| jobs.done(self.nothing(&job)));
                return Ok(());
            }
            if jobs.paused() {
                under_way.stop().for_each(|job| jobs.set_aside(self.nothing(&job)));
                return Ok(());
            }
            while under_way.0.len() < self.endpoint.settings.concurrent {
                let Some(job) = jobs.next() else { break };
                match self.begin(next_key, &job, &tell) {
                    Ok(handle) => drop(under_way.0.insert(next_key, (job, handle))),
                    Err(error) => jobs.failed(job.id, error.into()),
                }
                next_key += 1;
            }
            if under_way.0.is_empty() {
                return Ok(());
            }
            let (key, answer) = match heard.recv_timeout(TICK) {
                Ok(answered) => answered,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let Some((job, _)) = under_way.0.remove(&key) else { continue };
            match self.read(&job, answer) {
                Ok(sampled) => {
                    jobs.progress(sampled.tokens.len());
                    jobs.done(sampled);
                }
                Err(error) if error.stops_everything() => return Err(error.into()),
                Err(error) => jobs.failed(job.id, error.into()),
            }
        }
    }

    fn context(&self) -> usize {
        self.endpoint.settings.context
    }
}
