//! The real SmolLM2-135M: against a float64 pass over the same dequantised weights (`golden/smollm2_135m.json`, made by
//! `scripts/golden_smollm2.py`), loosely against another engine, and short proofs of the bit contract at full size.
//!
//! The file is looked for where `SUREFOOT_TEST_MODEL` says, else in the model store; without it the tests say that they
//! were skipped.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use surefoot_model as model;
use tensor::vocab::normalise;
use tensor::{Cpu, Isa};

use model::cache::{Cache, Sequence as Cached};
use model::export::{Merged, hf_config, write_hf};
use model::head::Tempering;
use model::infer::Row;
use model::packed::{Given, Pack, Sequence, Trainer};
use model::{Config, Infer, Params, arch};

/// Largest difference of a logit, a log-sum-exp or a log-probability from the float64 pass: single precision through
/// thirty layers, on logits of up to 32.
const FROM_FLOAT64: f64 = 2e-4;

/// Largest difference of a log-probability from the other engine, which rounds activations to eight bits.
const FROM_ANOTHER: f64 = 0.1;

/// Text, tokens, and what llama.cpp says of them through llama-cpp-python 0.3.36 on the same file: log-probabilities of all
/// but the first token, and at each place the most likely token with its lead over the second, in logits.
const TOKENS: [u32; 15] = [504, 3575, 282, 4649, 314, 7042, 30, 216, 33, 39, 1232, 216, 34, 37, 446];
const LOG_PROBABILITIES: [f64; 14] = [
    -11.4496, -0.4121, -2.5211, -0.432, -0.2644, -0.3762, -4.256, -2.4404, -2.459, -9.9093, -0.1197, -1.5197, -3.6514,
    -0.6233,
];
const MOST_LIKELY: [(u32, f64); 15] = [
    (29, 1.7661),
    (282, 1.8963),
    (260, 0.5331),
    (314, 2.0487),
    (7042, 2.5399),
    (30, 1.2576),
    (198, 1.3871),
    (198, 0.9647),
    (40, 0.2212),
    (373, 1.0291),
    (216, 4.7326),
    (33, 0.4326),
    (446, 0.7011),
    (446, 0.6076),
    (216, 5.6971),
];

type Model = (PathBuf, Config, Params);

fn model(test: &str) -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    let found = MODEL.get_or_init(|| {
        let path = place();
        let read = |path: PathBuf| {
            let (config, params) = model::load(&path).unwrap();
            (path, config, params)
        };
        path.is_file().then(|| read(path))
    });
    if found.is_none() {
        println!(
            "skipped: `{test}` needs the file `{}`, which `surefoot models pull smollm2-135m` puts there",
            place().display()
        );
    }
    found.as_ref()
}

fn place() -> PathBuf {
    let get = |name: &str| std::env::var(name).ok();
    let own = get("SUREFOOT_TEST_MODEL").filter(|v| !v.is_empty()).map(PathBuf::from);
    own.unwrap_or_else(|| {
        store::models_folder(&store::default_root(&get)).join("smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf")
    })
}

/// Raw logits of every token, read in chunks.
fn logits(cpu: &Cpu, config: &Config, params: &Params, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let (mut cache, mut sequence) = (Cache::new(config, 4), Cached::default());
    let mut infer = Infer::new(config);
    let rows: Vec<Row> = tokens.iter().map(|t| Row { token: *t, sequence: 0, wanted: true }).collect();
    let mut all = Vec::new();
    for chunk in rows.chunks(chunk) {
        let got = infer.step(cpu, config, (params, None), None, &mut cache, &mut [&mut sequence], chunk);
        all.extend_from_slice(got.unwrap());
    }
    all
}

/// Log-probabilities of all but the first token, from a training pass.
fn trained(cpu: &Cpu, config: &Config, params: &Params, tokens: &[u32]) -> Vec<f32> {
    let trained: Vec<bool> = (0..tokens.len()).map(|i| i > 0).collect();
    let mut pack = Pack::default();
    pack.push(&[Sequence::new(tokens, &trained)]);
    let given = Given { cpu, config, params, half: None, adapter: None, value: None, tempering: Tempering::NONE };
    Trainer::new(config, false).forward(&given, &pack).remove(0).remove(0).logp.split_off(1)
}

/// The same from raw logits.
fn log_probabilities(isa: Isa, logits: &[f32], vocabulary: usize, tokens: &[u32]) -> Vec<f32> {
    let one = |(z, t): (&[f32], &u32)| normalise(isa, z).log_probability(z[*t as usize]);
    logits.chunks(vocabulary).zip(&tokens[1..]).map(one).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap_or(0.0)).collect()
}

fn most_likely(z: &[f32]) -> u32 {
    tensor::vocab::most_likely(z)
}

#[test]
fn logits_match_a_float64_pass_over_the_same_weights() {
    let Some((_, config, params)) = model("logits_match_a_float64_pass_over_the_same_weights") else { return };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/smollm2_135m.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    let mut worst = [0.0_f64; 3];
    for text in golden["texts"].as_array().unwrap() {
        let tokens: Vec<u32> = numbers(&text["tokens"]).iter().map(|t| *t as u32).collect();
        let all = logits(&cpu, config, params, &tokens, tokens.len());
        let (sums, logps) = (numbers(&text["logsumexp"]), numbers(&text["logprobs"]));
        for (i, z) in all.chunks(config.vocabulary).enumerate() {
            let (ids, want) = (numbers(&text["top_ids"][i]), numbers(&text["top_logits"][i]));
            assert_eq!((ids.len(), want.len()), (32, 32));
            for (id, want) in ids.iter().zip(&want) {
                worst[0] = worst[0].max((f64::from(z[*id as usize]) - want).abs());
            }
            if want[0] - want[1] > 2.0 * FROM_FLOAT64 {
                assert_eq!(most_likely(z), ids[0] as u32, "the most likely token at {i}");
            }
            let row = normalise(cpu.isa(), z);
            worst[1] = worst[1].max((row.log_sum - sums[i]).abs());
            if let Some(next) = tokens.get(i + 1) {
                let logp = f64::from(row.log_probability(z[*next as usize]));
                worst[2] = worst[2].max((logp - logps[i + 1]).abs());
            }
        }
    }
    let [top, sum, logp] = worst;
    println!("from float64: top-32 logits {top:.2e}, log-sum-exp {sum:.2e}, log-probabilities {logp:.2e}");
    assert!(worst.iter().all(|w| *w > 0.0 && *w < FROM_FLOAT64), "{worst:?}");
}

#[test]
fn log_probabilities_are_near_those_of_another_engine() {
    let Some((_, config, params)) = model("log_probabilities_are_near_those_of_another_engine") else { return };
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    let all = logits(&cpu, config, params, &TOKENS, TOKENS.len());
    let got = log_probabilities(cpu.isa(), &all, config.vocabulary, &TOKENS);
    let worst = got.iter().zip(LOG_PROBABILITIES).fold(0.0_f64, |m, (a, b)| m.max((f64::from(*a) - b).abs()));
    println!("from another engine: log-probabilities {worst:.3}");
    assert!(worst < FROM_ANOTHER, "{worst}");
    let mut n_clear = 0;
    for (i, (z, (token, lead))) in all.chunks(config.vocabulary).zip(MOST_LIKELY).enumerate() {
        if lead > 0.5 {
            n_clear += 1;
            assert_eq!(most_likely(z), token, "the most likely token at {i}, which leads by {lead}");
        }
    }
    assert!(n_clear >= 12);
}

#[test]
fn decode_prefill_and_training_agree_to_the_bit_on_every_vector_set_and_thread_count() {
    let name = "decode_prefill_and_training_agree_to_the_bit_on_every_vector_set_and_thread_count";
    let Some((_, config, params)) = model(name) else { return };
    let want = logits(&Cpu::new(Isa::best(), 2).unwrap(), config, params, &TOKENS, TOKENS.len());
    for isa in Isa::available() {
        // The portable loops are slow where no compiler flag gives them a fused multiply-add.
        let n = if isa == Isa::Scalar { 3 } else { TOKENS.len() };
        let tokens = &TOKENS[..n];
        let want = bits(&want[..n * config.vocabulary]);
        for n_threads in [1, 2] {
            if isa == Isa::Scalar && n_threads == 1 {
                continue;
            }
            let cpu = Cpu::new(isa, n_threads).unwrap();
            let chunks: &[usize] = if isa == Isa::Scalar { &[2] } else { &[1, 4, 15] };
            for chunk in chunks {
                let got = logits(&cpu, config, params, tokens, *chunk);
                assert!(bits(&got) == want, "{isa}, {n_threads} threads, chunks of {chunk}");
                let logp = log_probabilities(isa, &got, config.vocabulary, tokens);
                if *chunk == chunks[0] {
                    let trained = trained(&cpu, config, params, tokens);
                    assert_eq!(bits(&trained), bits(&logp), "{isa}, {n_threads} threads: training");
                }
            }
        }
    }
}

#[test]
fn the_same_weights_from_gguf_and_from_safetensors_agree_to_the_bit() {
    let name = "the_same_weights_from_gguf_and_from_safetensors_agree_to_the_bit";
    let Some((_, config, params)) = model(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let json = hf_config(config).unwrap();
    std::fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    let path = folder.path().join("model.safetensors");
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    let merged = Merged::new(&cpu, config, params, None).unwrap();
    let mut out = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    write_hf(&path, &mut out, &merged, &arch::from_hf(&json).unwrap()).unwrap();
    drop(out);
    let (got_config, got) = model::load(folder.path()).unwrap();
    for (index, (got, want)) in got.storage().into_iter().zip(params.storage()).enumerate() {
        let (got, want) = (got.into_inner(), want.into_inner());
        assert!(got.len() == want.len() && bits(got) == bits(want), "tensor {index}");
    }
    // The frequencies may come by another route, so what is computed is compared too.
    let tokens = &TOKENS[..6];
    let run = |config: &Config, params: &Params| bits(&logits(&cpu, config, params, tokens, tokens.len()));
    assert!(run(&got_config, &got) == run(config, params), "logits");
}
