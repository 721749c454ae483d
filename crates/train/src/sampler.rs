//! Continuous batching: rows of many sequences step together, a finished one is replaced at once, and what prompts have in
//! common is computed once.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use episode::{StopReason, Token};
use model::cache::Sequence;
use model::head::{Draw, Drawn, Tempering, draw_row};
use model::infer::Row;
use policy::{Job, Jobs, Policy, PolicyError, Sampled, Sampler, SamplingError};
use tensor::Isa;
use tensor::attention::paged::PAGE;
use text::{StreamDecoder, Tokenizer};

use crate::engine::Engine;

/// Finished prompts kept for jobs that begin the same way.
const KEPT_PROMPTS: usize = 16;
/// Tokens in common from which waiting for a prompt under way beats reading them again.
const WORTH_WAITING: usize = 8;

impl Sampler for Engine {
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        let tokenizer = self.tokenizer.clone();
        let mut floor = Floor {
            version: self.version(),
            engine: self,
            tokenizer: tokenizer.as_deref(),
            slots: Vec::new(),
            prompts: Vec::new(),
            ready: VecDeque::new(),
            held: VecDeque::new(),
        };
        let result = floor.run(jobs);
        floor.release_all();
        result
    }

    fn context(&self) -> usize {
        self.config.context
    }
}

/// A sequence being sampled.
struct Slot<'t> {
    job: Job,
    sequence: Sequence,
    tokens: Vec<Token>,
    logp: Vec<f32>,
    logp_t1: Vec<f32>,
    decoder: Option<StreamDecoder<'t>>,
}

/// A prompt being read, and who waits for it.
struct Prompt {
    tokens: Arc<[Token]>,
    sequence: Sequence,
    waiting: Vec<Job>,
}

/// A prompt that was read: its keys and values, and the logits after it.
struct Ready {
    tokens: Arc<[Token]>,
    sequence: Sequence,
    logits: Vec<f32>,
}

struct Floor<'e, 't> {
    engine: &'e mut Engine,
    version: u32,
    tokenizer: Option<&'t Tokenizer>,
    slots: Vec<Slot<'t>>,
    prompts: Vec<Prompt>,
    ready: VecDeque<Ready>,
    /// Jobs in hand that cannot start yet.
    held: VecDeque<Job>,
}

impl<'t> Floor<'_, 't> {
    fn run(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        loop {
            if jobs.cancelled() {
                self.give_all_back(&mut |part| jobs.done(part));
                return Ok(());
            }
            if jobs.paused() {
                self.give_all_back(&mut |part| jobs.set_aside(part));
                return Ok(());
            }
            self.admit(jobs);
            if self.slots.is_empty() && self.prompts.is_empty() {
                return Ok(());
            }
            let n_drawn = self.step(jobs)?;
            jobs.progress(n_drawn);
        }
    }

    fn n_open(&self) -> usize {
        self.slots.len() + self.prompts.iter().map(|p| p.waiting.len()).sum::<usize>()
    }

    /// Takes jobs while there is room for them.
    fn admit(&mut self, jobs: &mut dyn Jobs) {
        while self.n_open() < self.engine.settings.batch {
            let Some(job) = self.held.pop_front().or_else(|| jobs.next()) else { return };
            if let Err(error) = self.check(&job) {
                jobs.failed(job.id, error);
                continue;
            }
            if let Some(job) = self.place(job, jobs) {
                self.held.push_front(job);
                return;
            }
        }
    }

    fn check(&self, job: &Job) -> Result<(), PolicyError> {
        job.sampling.check()?;
        let config = &self.engine.config;
        if job.prompt.is_empty() {
            return Err(PolicyError::NoPrompt);
        }
        if job.prompt.len() >= config.context {
            return Err(PolicyError::Context { needed: job.prompt.len() + 1, context: config.context });
        }
        let vocabulary = config.vocabulary;
        if let Some(token) = job.prompt.iter().find(|t| **t as usize >= vocabulary) {
            return Err(PolicyError::Vocabulary { token: *token, vocabulary });
        }
        let banned = (0..vocabulary as u32).all(|t| job.sampling.banned.contains(&t));
        if job.sampling.banned.len() >= vocabulary && banned {
            return Err(SamplingError::AllBanned(vocabulary).into());
        }
        if !job.sampling.stop_strings.is_empty() && self.tokenizer.is_none() {
            return Err(PolicyError::Unsupported("stop strings need a tokenizer, and there is none".to_owned()));
        }
        let needed = self.pages(job);
        let pages = self.engine.cache.n_pages();
        if needed > pages {
            let (needed, got) = (needed * PAGE, pages * PAGE);
            let hint = "raise `cache_mb` or lower `max_tokens`";
            return Err(PolicyError::Unsupported(format!(
                "the key/value cache holds {got} positions, {needed} are needed for one sequence: {hint}"
            )));
        }
        Ok(())
    }

    /// Pages a job may come to need, nothing shared.
    fn pages(&self, job: &Job) -> usize {
        let longest = (job.prompt.len() + job.sampling.max_tokens).saturating_sub(job.begun);
        let longest = longest.max(job.prompt.len() + 1).min(self.engine.config.context);
        longest.div_ceil(PAGE)
    }

    /// Pages promised to the open jobs, and those of prompts being read, which hold their own beside them.
    fn promised(&self) -> (usize, usize) {
        let waiting = self.prompts.iter().flat_map(|p| &p.waiting);
        let open = self.slots.iter().map(|s| &s.job).chain(waiting).map(|j| self.pages(j)).sum();
        (open, self.prompts.iter().map(|p| p.tokens.len().div_ceil(PAGE)).sum())
    }

    /// Pages of finished prompts.
    fn kept(&self) -> usize {
        self.ready.iter().map(|r| r.tokens.len().div_ceil(PAGE)).sum()
    }

    /// Whether every job that is open, and this one, can grow to its end; finished prompts are dropped to make room.
    fn has_room(&mut self, job: &Job) -> bool {
        let (open, reading) = self.promised();
        let needed = open + reading + self.pages(job) + job.prompt.len().div_ceil(PAGE);
        while needed + self.kept() > self.engine.cache.n_pages() {
            match self.ready.pop_front() {
                Some(old) => self.engine.cache.release(old.sequence),
                // A lone job may have the whole cache.
                None => return self.n_open() == 0,
            }
        }
        true
    }

    /// Starts a job, or gives it back when it must wait.
    fn place(&mut self, job: Job, jobs: &mut dyn Jobs) -> Option<Job> {
        if let Some(prompt) = self.prompts.iter().position(|p| p.tokens == job.prompt) {
            if !self.has_room(&job) {
                return Some(job);
            }
            self.prompts[prompt].waiting.push(job);
            return None;
        }
        if !self.has_room(&job) {
            return Some(job);
        }
        if let Some(index) = self.ready.iter().position(|r| r.tokens == job.prompt) {
            // The most recently used prompt is dropped last.
            let ready = self.ready.remove(index).expect("the position was found");
            self.start(job, &ready, jobs);
            self.ready.push_back(ready);
            return None;
        }
        let alike = |tokens: &[Token]| tokens.iter().zip(job.prompt.iter()).take_while(|(a, b)| a == b).count();
        let best = self.ready.iter().map(|r| alike(&r.tokens)).enumerate().max_by_key(|(_, n)| *n);
        let have = best.map_or(0, |(_, n)| n);
        if self.prompts.iter().any(|p| alike(&p.tokens) >= have + WORTH_WAITING) {
            return Some(job);
        }
        // At least the last token is read again: its logits are wanted.
        let shared = have.min(job.prompt.len() - 1);
        let sequence = match best {
            Some((index, _)) if shared > 0 => self.engine.cache.fork_start(&self.ready[index].sequence, shared),
            _ => Sequence::default(),
        };
        self.prompts.push(Prompt { tokens: job.prompt.clone(), sequence, waiting: vec![job] });
        None
    }

    /// Opens a slot after a prompt and draws its first token.
    fn start(&mut self, job: Job, ready: &Ready, jobs: &mut dyn Jobs) {
        let sequence = self.engine.cache.fork(&ready.sequence);
        let decoder = match self.tokenizer {
            Some(t) if !job.sampling.stop_strings.is_empty() => {
                match StreamDecoder::new(t, true, &job.sampling.stop_strings) {
                    Ok(mut decoder) => {
                        // A stop string may have begun before the turn was set aside.
                        for token in &job.prompt[job.prompt.len() - job.begun.min(job.prompt.len())..] {
                            decoder.push(*token);
                        }
                        Some(decoder)
                    }
                    Err(error) => {
                        self.engine.cache.release(sequence);
                        jobs.failed(job.id, PolicyError::Unsupported(error.to_string()));
                        return;
                    }
                }
            }
            _ => None,
        };
        let mut slot = Slot { job, sequence, tokens: Vec::new(), logp: Vec::new(), logp_t1: Vec::new(), decoder };
        let drawn = draw(self.engine.cpu.isa(), &mut ready.logits.clone(), &slot.job, 0);
        match self.take(&mut slot, drawn) {
            None => self.slots.push(slot),
            Some(stop) => self.finish(slot, stop, jobs),
        }
    }

    /// One pass of the model over the newest token of every slot and some of the prompts' tokens; returns how many tokens
    /// were drawn.
    fn step(&mut self, jobs: &mut dyn Jobs) -> Result<usize, PolicyError> {
        let mut rows = Vec::new();
        // Which prompt each wanted row ends; the slots' rows, which come first, end none.
        let mut ends: Vec<Option<usize>> = Vec::new();
        let mut sequences: Vec<&mut Sequence> = Vec::new();
        for slot in &mut self.slots {
            let token = *slot.tokens.last().expect("a slot has drawn its first token");
            rows.push(Row { token, sequence: sequences.len(), wanted: true });
            ends.push(None);
            sequences.push(&mut slot.sequence);
        }
        let mut left = self.engine.settings.prompt_rows;
        for (index, prompt) in self.prompts.iter_mut().enumerate() {
            if left == 0 {
                break;
            }
            let (from, all) = (prompt.sequence.len(), prompt.tokens.len());
            let to = all.min(from + left);
            left -= to - from;
            for (position, token) in prompt.tokens[from..to].iter().enumerate() {
                let wanted = from + position + 1 == all;
                rows.push(Row { token: *token, sequence: sequences.len(), wanted });
                if wanted {
                    ends.push(Some(index));
                }
            }
            sequences.push(&mut prompt.sequence);
        }
        let Engine { infer, cpu, config, params, half, adapter, cache, .. } = &mut *self.engine;
        let logits = infer
            .step(cpu, config, (params, half.as_ref()), adapter.as_ref(), cache, &mut sequences, &rows)
            .map_err(|e| PolicyError::Unsupported(e.to_string()))?;
        let v = config.vocabulary;
        let n_slots = self.slots.len();
        let isa = cpu.isa();
        let drawn: Vec<OnceLock<Option<Drawn>>> = (0..n_slots).map(|_| OnceLock::new()).collect();
        let slots = &self.slots;
        cpu.each_row(n_slots, 1, (&mut logits[..n_slots * v], v), |i, z| {
            let _ = drawn[i].set(draw(isa, z, &slots[i].job, slots[i].tokens.len()));
        });
        let mut read = Vec::new();
        for (row, end) in logits.chunks(v).zip(&ends) {
            read.extend(end.map(|index| (index, row.to_vec())));
        }
        let mut kept = Vec::with_capacity(n_slots);
        for (mut slot, drawn) in std::mem::take(&mut self.slots).into_iter().zip(drawn) {
            match self.take(&mut slot, drawn.into_inner().flatten()) {
                None => kept.push(slot),
                Some(stop) => self.finish(slot, stop, jobs),
            }
        }
        self.slots = kept;
        let mut n_drawn = n_slots;
        // From the back, so that the positions of the others stay.
        read.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, logits) in read {
            let Prompt { tokens, sequence, waiting } = self.prompts.remove(index);
            let ready = Ready { tokens, sequence, logits };
            n_drawn += waiting.len();
            for job in waiting {
                self.start(job, &ready, jobs);
            }
            self.ready.push_back(ready);
        }
        self.keep_prompts();
        Ok(n_drawn)
    }

    /// Drops finished prompts, the least recently used first, until few are left and the open jobs can grow to their ends:
    /// a job that was let in alone may need the page that its own prompt ends on.
    fn keep_prompts(&mut self) {
        let (open, reading) = self.promised();
        while self.ready.len() > KEPT_PROMPTS || open + reading + self.kept() > self.engine.cache.n_pages() {
            let Some(old) = self.ready.pop_front() else { return };
            self.engine.cache.release(old.sequence);
        }
    }

    /// Appends a drawn token; says why the slot ends, if it does.
    fn take(&self, slot: &mut Slot<'t>, drawn: Option<Drawn>) -> Option<End> {
        let Some(drawn) = drawn else { return Some(End::NotFinite) };
        slot.tokens.push(drawn.token);
        slot.logp.push(drawn.logp);
        slot.logp_t1.push(drawn.logp_t1);
        let sampling = &slot.job.sampling;
        if sampling.stop_tokens.contains(&drawn.token) {
            return Some(End::Stop(StopReason::Eos));
        }
        if let Some(decoder) = &mut slot.decoder {
            decoder.push(drawn.token);
            if decoder.stopped().is_some() {
                return Some(End::Stop(StopReason::Stop));
            }
        }
        if slot.job.begun + slot.tokens.len() >= sampling.max_tokens {
            return Some(End::Stop(StopReason::Length));
        }
        if slot.job.prompt.len() + slot.tokens.len() >= self.engine.config.context {
            return Some(End::Stop(StopReason::Context));
        }
        None
    }

    fn finish(&mut self, slot: Slot<'t>, end: End, jobs: &mut dyn Jobs) {
        let Slot { job, sequence, tokens, logp, logp_t1, .. } = slot;
        self.engine.cache.release(sequence);
        match end {
            End::Stop(stop) => {
                jobs.done(Sampled { id: job.id, tokens, logp, logp_t1, stop, version: self.version });
            }
            End::NotFinite => {
                let place = format!("position {} of its sequence", job.prompt.len() + tokens.len());
                jobs.failed(job.id, PolicyError::NotFinite { what: "a logit", place });
            }
        }
    }

    /// Ends every open job with what it has.
    fn give_all_back(&mut self, give: &mut dyn FnMut(Sampled)) {
        let stop = StopReason::Cancelled;
        for slot in std::mem::take(&mut self.slots) {
            let Slot { job, sequence, tokens, logp, logp_t1, .. } = slot;
            self.engine.cache.release(sequence);
            give(Sampled { id: job.id, tokens, logp, logp_t1, stop, version: self.version });
        }
        let waiting = self.prompts.iter_mut().flat_map(|p| std::mem::take(&mut p.waiting));
        for job in waiting.chain(self.held.drain(..)) {
            let none = Vec::new();
            let (tokens, logp, logp_t1) = (Vec::new(), none.clone(), none);
            give(Sampled { id: job.id, tokens, logp, logp_t1, stop, version: self.version });
        }
    }

    /// Gives every page back, so that nothing of these weights outlives the call.
    fn release_all(&mut self) {
        let slots = std::mem::take(&mut self.slots).into_iter().map(|s| s.sequence);
        let prompts = std::mem::take(&mut self.prompts).into_iter().map(|p| p.sequence);
        let ready = std::mem::take(&mut self.ready).into_iter().map(|r| r.sequence);
        for sequence in slots.chain(prompts).chain(ready) {
            self.engine.cache.release(sequence);
        }
    }
}

/// How a slot ends.
enum End {
    Stop(StopReason),
    NotFinite,
}

/// Draws a job's next token; the token at position `p` of the sequence uses number `p` of its stream.
fn draw(isa: Isa, logits: &mut [f32], job: &Job, n_sampled: usize) -> Option<Drawn> {
    let s = &*job.sampling;
    let greedy = s.temperature == 0.0;
    let how = Draw {
        tempering: Tempering { inverse: if greedy { 1.0 } else { 1.0 / s.temperature }, banned: &s.banned },
        greedy,
        top_k: s.top_k.map(|k| k as usize),
        top_p: s.top_p,
        min_p: s.min_p,
        uniform: job.stream.uniform((job.prompt.len() + n_sampled) as u64),
    };
    draw_row(isa, logits, &how)
}
