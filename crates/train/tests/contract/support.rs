//! The tiny models of every family, engines over them, and a desk that hands out jobs and keeps what comes back.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use episode::random::Stream;
use episode::{StopReason, Token};
use loss::Top;
use model::{Adapter, Config, Params};
use policy::{
    AdamStep, Batch, Checkpoint, Job, Jobs, PolicyError, Sampled, Sampler, Sampling, TokenValues, TrainSequence,
    ValueAt, Want,
};
use surefoot_train::{Engine, EngineSettings, Precision, Trainable};
use tensor::weights::{OutTensor, Safetensors, TensorSource, write_safetensors};
use tensor::{Cpu, Isa};

pub(crate) const FAMILIES: [&str; 8] =
    ["llama", "llama_linear", "smollm2", "qwen2", "qwen2_yarn", "qwen3", "gemma3", "gemma3_linear"];

/// Every token of a test lies below this, the smallest vocabulary of the families.
pub(crate) const VOCABULARY: u64 = 48;

/// One family's tiny model, and the precision of its products.
pub(crate) struct Tiny {
    pub(crate) config: Config,
    pub(crate) params: Params,
    pub(crate) adapter: Adapter,
    pub(crate) precision: Precision,
}

impl Tiny {
    pub(crate) fn load(name: &'static str) -> Tiny {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
        let (config, params) = model::load(&folder).unwrap();
        let adapter = model::peft::load(&folder.join("adapter"), &config).unwrap();
        Tiny { config, params, adapter, precision: Precision::F32 }
    }

    pub(crate) fn in_precision(name: &'static str, precision: Precision) -> Tiny {
        Tiny { precision, ..Tiny::load(name) }
    }

    /// An engine with all weights to train, or with the family's adapter on and that to train.
    pub(crate) fn engine(&self, adapted: bool, machine: &Machine) -> Engine {
        let weights = (self.config.clone(), self.params.clone());
        let mut engine =
            Engine::new(machine.cpu(), weights, None, self.trainable(adapted), machine.settings.clone(), 1).unwrap();
        if adapted {
            engine.set_adapter(self.adapter.clone()).unwrap();
        }
        engine.with_precision(self.precision)
    }

    /// As [`Tiny::engine`], with a value head that says something.
    pub(crate) fn valued(&self, adapted: bool, machine: &Machine) -> Engine {
        let mut engine = self.engine(adapted, machine).with_value_head();
        let stream = Stream::new("value head", &[]);
        let draw = |i: u64| stream.uniform(i) as f32 - 0.5;
        let weight = (0..self.config.width as u64).map(draw).collect();
        let head =
            [("value_head.bias", vec![1], vec![draw(1000)]), ("value_head.weight", vec![1, self.config.width], weight)];
        let folder = tempfile::tempdir().unwrap();
        let head = head.map(|(name, shape, values)| (name.to_owned(), (shape, values)));
        write_tensors(&folder.path().join("value.safetensors"), &BTreeMap::from(head));
        engine.load_value_head(folder.path()).unwrap();
        engine
    }

    pub(crate) fn trainable(&self, adapted: bool) -> Trainable {
        let Adapter { rank, alpha, .. } = self.adapter;
        if adapted { Trainable::Lora { rank, alpha, targets: vec!["all".to_owned()] } } else { Trainable::Full {} }
    }
}

/// Every family, bare and with its adapter on, in f32: the cases that tests go through.
pub(crate) fn everywhere(check: impl FnMut(&Tiny, bool, &str)) {
    go_through(&[Precision::F32], check);
}

/// As [`everywhere`], in bf16 too: what the kernels of a precision could break.
pub(crate) fn in_both_precisions(check: impl FnMut(&Tiny, bool, &str)) {
    go_through(&[Precision::F32, Precision::Bf16], check);
}

fn go_through(precisions: &[Precision], mut check: impl FnMut(&Tiny, bool, &str)) {
    for name in FAMILIES {
        for precision in precisions {
            let tiny = Tiny::in_precision(name, *precision);
            for adapted in [false, true] {
                let how = if adapted { "adapted" } else { "bare" };
                check(&tiny, adapted, &format!("{name} in {precision:?}, {how}"));
            }
        }
    }
}

/// How the work is done; none of it may change a bit.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) isa: Isa,
    pub(crate) n_threads: usize,
    pub(crate) settings: EngineSettings,
}

impl Machine {
    pub(crate) fn new(change: impl Fn(&mut EngineSettings)) -> Machine {
        let mut settings = EngineSettings { cache_mb: 16, ..EngineSettings::default() };
        change(&mut settings);
        Machine { isa: Isa::best(), n_threads: 2, settings }
    }

    pub(crate) fn plain() -> Machine {
        Machine::new(|_| ())
    }

    pub(crate) fn cpu(&self) -> Cpu {
        Cpu::new(self.isa, self.n_threads).unwrap()
    }
}

/// Every vector set of this processor with 1, 2 and 3 threads. In bf16 each set has one number of threads and each
/// number one set: what is shared with f32 has been through all pairs.
pub(crate) fn machines(precision: Precision) -> Vec<Machine> {
    let of = |isa| (1..=3).map(move |n_threads| Machine { isa, n_threads, ..Machine::plain() });
    let sets = Isa::available();
    match precision {
        Precision::F32 => sets.into_iter().flat_map(of).collect(),
        Precision::Bf16 => (0..3).filter_map(|i| of(sets[i % sets.len()]).nth(i)).collect(),
    }
}

/// Reproducible tokens; prompts of one seed are beginnings of each other.
pub(crate) fn tokens(seed: u64, n: usize) -> Vec<Token> {
    let stream = Stream::new("tokens", &[seed]);
    (0..n as u64).map(|i| stream.below(i, VOCABULARY) as Token).collect()
}

pub(crate) fn job(id: u64, prompt: &[Token], sampling: &Sampling) -> Job {
    Job {
        id,
        prompt: prompt.into(),
        begun: 0,
        sampling: Arc::new(sampling.clone()),
        stream: Stream::new("sample", &[id]),
    }
}

/// One of each way to draw.
pub(crate) fn samplings() -> Vec<Sampling> {
    let plain = |temperature| Sampling::plain(temperature, 8, Vec::new());
    let banned = vec![3, 17, 2];
    vec![
        plain(1.0),
        plain(0.7),
        Sampling { banned: banned.clone(), ..plain(1.3) },
        Sampling { top_k: Some(5), ..plain(1.0) },
        Sampling { top_p: Some(0.8), ..plain(0.9) },
        Sampling { min_p: Some(0.1), banned: banned.clone(), ..plain(1.0) },
        Sampling { stop_tokens: (4..16).collect(), ..plain(1.0) },
        Sampling { banned, ..plain(0.0) },
        Sampling { top_k: Some(12), top_p: Some(0.9), min_p: Some(0.02), ..plain(1.5) },
    ]
}

/// Prompts around the size of a page (32), nested, forked and apart.
pub(crate) fn prompts() -> Vec<Vec<Token>> {
    let fork = |n: usize, seed, m| [tokens(1, n), tokens(seed, m)].concat();
    let mut all: Vec<Vec<Token>> = [1, 31, 32, 33, 64, 65, 70].map(|n| tokens(1, n)).into();
    all.extend([tokens(2, 5), tokens(3, 32), fork(40, 4, 7), fork(32, 5, 33), tokens(6, 2)]);
    all
}

/// Sixty-four jobs over all of them.
pub(crate) fn crowd() -> Vec<Job> {
    let (prompts, samplings) = (prompts(), samplings());
    let one = |i: usize| {
        let sampling = Sampling { max_tokens: 2 + i % 9, ..samplings[(i + i / 12) % samplings.len()].clone() };
        job(i as u64, &prompts[i % prompts.len()], &sampling)
    };
    (0..64).map(one).collect()
}

/// What a job came to, its numbers as bits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Said {
    pub(crate) tokens: Vec<Token>,
    pub(crate) logp: Vec<u32>,
    pub(crate) logp_t1: Vec<u32>,
    pub(crate) stop: StopReason,
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Hands out jobs in order and keeps what comes back.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) waiting: VecDeque<Job>,
    pub(crate) done: BTreeMap<u64, Said>,
    pub(crate) failed: BTreeMap<u64, String>,
    pub(crate) versions: Vec<u32>,
    /// Raises the flag after this many token positions.
    pub(crate) cancel_after: Option<usize>,
    pub(crate) n_positions: usize,
}

impl Desk {
    pub(crate) fn of(jobs: &[Job]) -> Desk {
        Desk { waiting: jobs.to_vec().into(), ..Desk::default() }
    }
}

impl Jobs for Desk {
    fn next(&mut self) -> Option<Job> {
        self.waiting.pop_front()
    }

    fn done(&mut self, got: Sampled) {
        let Sampled { id, tokens, logp, logp_t1, stop, version } = got;
        let said = Said { tokens, logp: bits(&logp), logp_t1: bits(&logp_t1), stop };
        assert!(self.done.insert(id, said).is_none(), "job {id} came back twice");
        self.versions.push(version);
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        assert!(self.failed.insert(id, error.to_string()).is_none(), "job {id} failed twice");
    }

    fn progress(&mut self, _: usize) {
        self.n_positions += 1;
    }

    fn cancelled(&self) -> bool {
        self.cancel_after.is_some_and(|n| self.n_positions >= n)
    }
}

/// Samples jobs that all succeed; results in the order of the jobs.
pub(crate) fn sample(engine: &mut Engine, jobs: &[Job]) -> Vec<Said> {
    let mut desk = Desk::of(jobs);
    engine.sample(&mut desk).unwrap();
    assert_eq!(desk.failed, BTreeMap::new());
    let missing = |id| format!("job {id} never came back");
    jobs.iter().map(|j| desk.done.remove(&j.id).unwrap_or_else(|| panic!("{}", missing(j.id)))).collect()
}

/// Samples every job in a call of its own.
pub(crate) fn sample_alone(engine: &mut Engine, jobs: &[Job]) -> Vec<Said> {
    jobs.iter().flat_map(|j| sample(engine, std::slice::from_ref(j))).collect()
}

pub(crate) fn same(got: &[Said], want: &[Said], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got, want, "job {i}, {what}");
    }
}

/// A sequence to train on, owned.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) tokens: Vec<Token>,
    pub(crate) trained: Vec<bool>,
    pub(crate) top: Option<Top>,
}

impl Line {
    /// A prompt and what was said after it.
    pub(crate) fn new(prompt: &[Token], said: &[Token]) -> Line {
        let trained = (0..prompt.len() + said.len()).map(|i| i >= prompt.len()).collect();
        Line { tokens: [prompt, said].concat(), trained, top: None }
    }
}

/// The lines with `k` tokens named in the place of each trained one, the first the trained one itself; what stands
/// elsewhere is no token and no number.
pub(crate) fn named(groups: Vec<Vec<Line>>, k: usize) -> Vec<Vec<Line>> {
    let one = |mut line: Line| {
        let stream = Stream::new("named", &[u64::from(line.tokens[0]), line.tokens.len() as u64]);
        let token = |t: usize, i: usize| match (line.trained[t], i) {
            (false, _) => Token::MAX,
            (true, 0) => line.tokens[t],
            (true, _) => stream.below((t * k + i) as u64, VOCABULARY) as Token,
        };
        let ids: Vec<Token> =
            (0..line.tokens.len()).flat_map(|t| (0..k).map(move |i| (t, i))).map(|(t, i)| token(t, i)).collect();
        let logp = vec![f32::NAN; ids.len()];
        line.top = Some(Top { k, ids, logp });
        line
    };
    groups.into_iter().map(|group| group.into_iter().map(one).collect()).collect()
}

/// A batch of which values are asked, and most likely tokens.
pub(crate) fn asking(groups: &[Vec<Line>], value: ValueAt, top_k: usize) -> Batch<'_> {
    Batch { want: Want { value, top_k }, ..batch(groups, 0.8, &[]) }
}

/// Everything that a pass gives of a sequence, numbers as bits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) logp: Vec<u32>,
    pub(crate) entropy: Vec<u32>,
    pub(crate) value: Vec<u32>,
    pub(crate) ids: Vec<Token>,
    pub(crate) top: Vec<u32>,
}

pub(crate) fn found(v: &TokenValues) -> Found {
    let (ids, top) = v.top.as_ref().map_or((Vec::new(), Vec::new()), |top| (top.ids.clone(), bits(&top.logp)));
    Found { logp: bits(&v.logp), entropy: bits(&v.entropy), value: bits(&v.value), ids, top }
}

/// A batch at some temperature with some tokens banned.
pub(crate) fn batch<'a>(groups: &'a [Vec<Line>], temperature: f32, banned: &'a [Token]) -> Batch<'a> {
    let one = |l: &'a Line| TrainSequence { top: l.top.as_ref(), ..TrainSequence::new(&l.tokens, &l.trained) };
    Batch::new(groups.iter().map(|g| g.iter().map(one).collect()).collect(), temperature, banned)
}

/// Groups of every shape: shared prompts around a page, none in common, one sequence, twins, two turns, and a sequence
/// that trains nothing.
pub(crate) fn groups() -> Vec<Vec<Line>> {
    let samples = |prompt: usize, seed: u64, lengths: &[usize]| -> Vec<Line> {
        let said = |(i, n): (usize, &usize)| Line::new(&tokens(seed, prompt), &tokens(100 + seed * 10 + i as u64, *n));
        lengths.iter().enumerate().map(said).collect()
    };
    let two_turns = |seed| {
        let mut line = Line::new(&tokens(seed, 6), &tokens(seed + 1, 9));
        line.trained[9..12].fill(false);
        line
    };
    let mut idle = samples(64, 5, &[3, 4, 2]);
    idle[1].trained.fill(false);
    vec![
        samples(33, 1, &[5, 1, 8]),
        samples(1, 2, &[3, 7]),
        samples(9, 3, &[6]),
        vec![Line::new(&tokens(31, 4), &tokens(32, 4)), Line::new(&tokens(33, 7), &tokens(34, 2))],
        idle,
        vec![two_turns(41), two_turns(41), two_turns(43)],
        samples(32, 6, &[2, 2, 2, 40]),
        samples(31, 7, &[33, 1]),
    ]
}

/// A move that changes what is trained.
pub(crate) fn step() -> AdamStep {
    AdamStep { learning_rate: 1e-2, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1, clip_norm: 1.0 }
}

/// Every file of a checkpoint.
pub(crate) fn saved(engine: &Engine) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    read_folder(folder.path())
}

pub(crate) fn read_folder(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let read =
        |path: PathBuf| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap());
    std::fs::read_dir(folder).unwrap().map(|e| read(e.unwrap().path())).collect()
}

/// A folder with these files.
pub(crate) fn write_folder(files: &BTreeMap<String, Vec<u8>>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

pub(crate) fn read_tensors(path: &Path) -> Tensors {
    let file = Safetensors::open(path).unwrap();
    let one = |name: &str| {
        let shape = file.shape(name).unwrap().to_vec();
        let mut values = vec![0.0; shape.iter().product()];
        file.read_f32(name, &mut values).unwrap();
        (name.to_owned(), (shape, values))
    };
    file.names().into_iter().map(one).collect()
}

pub(crate) fn write_tensors(path: &Path, tensors: &Tensors) {
    let one = |(name, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
        let values = values.clone();
        OutTensor::made(name.clone(), shape.clone(), move || Cow::Owned(values.clone()))
    };
    let mut out = std::fs::File::create(path).unwrap();
    write_safetensors(path, &mut out, tensors.iter().map(one), &BTreeMap::new()).unwrap();
}

/// With these the first moment after one update is the gradient itself, bit by bit, and no weight moves.
pub(crate) const READ_OUT: AdamStep =
    AdamStep { learning_rate: 0.0, beta1: 0.0, beta2: 0.0, epsilon: 1.0, weight_decay: 0.0, clip_norm: f64::INFINITY };
