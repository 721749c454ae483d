//! Every family against the double-precision reference in `golden/`, made by `scripts/golden.py`: logits,
//! log-probabilities, entropies and every gradient tensor, of full weights and of an adapter.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

use std::path::{Path, PathBuf};

use serde_json::Value;
use surefoot_model as model;
use tensor::weights::{Safetensors, TensorSource};
use tensor::{Cpu, Isa};

use model::block::Grads;
use model::cache::{Cache, Sequence as Cached};
use model::head::Tempering;
use model::infer::Row;
use model::packed::{Derivatives, Given, Layout, Pack, Sequence, Trainer, Values};
use model::params::Slot;
use model::{Adapter, Config, Infer, Params, Target};

const FAMILIES: [&str; 8] =
    ["llama", "llama_linear", "smollm2", "qwen2", "qwen2_yarn", "qwen3", "gemma3", "gemma3_linear"];

/// Largest difference allowed, relative to the largest entry of a tensor: single precision through a few layers, where
/// each product's rounding is about 6e-8 times the root of its length.
const LOGITS: f64 = 4e-6;
const GRADIENT: f64 = 2e-5;

struct Case {
    folder: PathBuf,
    config: Config,
    params: Params,
    json: Value,
    golden: Safetensors,
    cpu: Cpu,
}

#[derive(Clone)]
struct Item {
    group: usize,
    tokens: Vec<u32>,
    trained: Vec<bool>,
    c: Vec<f32>,
    e: Vec<f32>,
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap_or(0.0)).collect()
}

impl Case {
    fn open(family: &str) -> Case {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(family);
        let (config, params) = model::load(&folder).unwrap();
        let json = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        let golden = Safetensors::open(&folder.join("golden.safetensors")).unwrap();
        Case { folder, config, params, json, golden, cpu: Cpu::new(Isa::best(), 2).unwrap() }
    }

    fn items(&self) -> Vec<Item> {
        let f32s = |v: &Value| numbers(v).iter().map(|x| *x as f32).collect();
        let one = |s: &Value| Item {
            group: s["group"].as_u64().unwrap() as usize,
            tokens: numbers(&s["tokens"]).iter().map(|t| *t as u32).collect(),
            trained: s["trained"].as_array().unwrap().iter().map(|t| t.as_bool().unwrap_or(*t == 1)).collect(),
            c: f32s(&s["c"]),
            e: f32s(&s["e"]),
        };
        self.json["sequences"].as_array().unwrap().iter().map(one).collect()
    }

    fn groups(items: &[Item]) -> Vec<Vec<Item>> {
        let n = items.iter().map(|i| i.group).max().unwrap() + 1;
        (0..n).map(|g| items.iter().filter(|i| i.group == g).cloned().collect()).collect()
    }

    fn read(&self, name: &str) -> Vec<f32> {
        let mut out = vec![0.0; self.golden.shape(name).unwrap().iter().product()];
        self.golden.read_f32(name, &mut out).unwrap();
        out
    }

    fn banned(&self) -> Vec<u32> {
        numbers(&self.json["banned"]).iter().map(|t| *t as u32).collect()
    }

    /// Runs every group through one pack; returns values by group and sequence.
    fn train(&self, adapter: Option<&Adapter>, grads: &mut Grads) -> Vec<Vec<Values>> {
        let groups = Case::groups(&self.items());
        let banned = self.banned();
        let inverse = 1.0 / self.json["temperature"].as_f64().unwrap() as f32;
        let tempering = Tempering { inverse, banned: &banned };
        let (cpu, config, params) = (&self.cpu, &self.config, &self.params);
        let given = Given { cpu, config, params, half: None, adapter, value: None, tempering };
        let mut pack = Pack::new(Layout { share: true, ..Layout::default() });
        for group in &groups {
            let sequences: Vec<_> = group.iter().map(|i| Sequence::new(&i.tokens, &i.trained)).collect();
            pack.push(&sequences);
        }
        let mut all = Vec::new();
        let one = |i: &Item| Derivatives { logp: i.c.clone(), entropy: i.e.clone(), ..Derivatives::default() };
        let mut loss = |index: usize, values: &[Values]| -> Vec<Derivatives> {
            all.push(values.to_vec());
            groups[index].iter().map(one).collect()
        };
        Trainer::new(&self.config, false).forward_backward(&given, &pack, grads, &mut loss);
        all
    }

    fn check_values(&self, kind: &str, values: &[Vec<Values>]) {
        let want = self.json[kind]["sequences"].as_array().unwrap();
        let items = self.items();
        let mut worst = 0.0_f64;
        let mut loss = 0.0;
        for ((values, want), item) in values.iter().flatten().zip(want).zip(&items) {
            let (logp, entropy) = (numbers(&want["logp"]), numbers(&want["entropy"]));
            for t in (0..item.tokens.len()).filter(|t| item.trained[*t]) {
                worst = worst
                    .max((f64::from(values.logp[t]) - logp[t]).abs())
                    .max((f64::from(values.entropy[t]) - entropy[t]).abs());
                loss += f64::from(item.c[t]) * f64::from(values.logp[t])
                    + f64::from(item.e[t]) * f64::from(values.entropy[t]);
            }
        }
        println!("{kind}: log-probabilities and entropies differ by at most {worst:.2e}");
        assert!(worst < 2e-5, "{worst}");
        let want = self.json[kind]["loss"].as_f64().unwrap();
        assert!((loss - want).abs() < 1e-4, "{loss} {want}");
    }

    fn check(&self, name: &str, got: &[f32], want: &[f32], bound: f64, worst: &mut (f64, String)) {
        assert_eq!(got.len(), want.len(), "{name}");
        let size = want.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
        let off = got.iter().zip(want).fold(0.0_f64, |m, (a, b)| m.max(f64::from((a - b).abs()))) / size.max(1e-6);
        if off > worst.0 {
            *worst = (off, name.to_owned());
        }
        assert!(off < bound, "{name}: off by {off:.2e} of its largest entry {size:.2e}");
    }

    /// Logits of each sequence, read token by token and all at once.
    fn check_logits(&self, prefix: &str, adapter: Option<&Adapter>) {
        let mut worst = (0.0, String::new());
        for (index, item) in self.items().iter().enumerate() {
            let want = self.read(&format!("{prefix}logits/{index}"));
            for at_once in [true, false] {
                let mut cache = Cache::new(&self.config, 4);
                let mut sequence = Cached::default();
                let mut infer = Infer::new(&self.config);
                let mut got = Vec::new();
                let rows: Vec<Row> = item.tokens.iter().map(|t| Row { token: *t, sequence: 0, wanted: true }).collect();
                for chunk in rows.chunks(if at_once { rows.len() } else { 1 }) {
                    let logits = infer
                        .step(
                            &self.cpu,
                            &self.config,
                            (&self.params, None),
                            adapter,
                            &mut cache,
                            &mut [&mut sequence],
                            chunk,
                        )
                        .unwrap();
                    got.extend_from_slice(logits);
                }
                self.check(&format!("logits/{index}"), &got, &want, LOGITS, &mut worst);
            }
        }
        println!("{}: {prefix}logits differ by at most {:.2e} ({})", self.config.family, worst.0, worst.1);
    }
}

#[test]
fn logits_match_the_reference() {
    for family in FAMILIES {
        let case = Case::open(family);
        case.check_logits("", None);
        let adapter = model::peft::load(&case.folder.join("adapter"), &case.config).unwrap();
        case.check_logits("lora/", Some(&adapter));
    }
}

#[test]
fn every_weight_gradient_matches_the_reference() {
    for family in FAMILIES {
        let case = Case::open(family);
        let mut grads = Grads { params: Some(Params::zeroed(&case.config, true)), ..Grads::default() };
        let values = case.train(None, &mut grads);
        case.check_values("base", &values);
        let mut worst = (0.0, String::new());
        let mut grads = grads.params.unwrap();
        if case.config.tied {
            let head = grads.read(&case.config, Slot::Head);
            let embedding = grads.read(&case.config, Slot::Embedding);
            case.check("head part", &head, &case.read("grad_parts/head"), GRADIENT, &mut worst);
            case.check("embedding part", &embedding, &case.read("grad_parts/embedding"), GRADIENT, &mut worst);
            let head = grads.head.take().unwrap();
            for (e, h) in grads.embedding.data_mut().iter_mut().zip(head.data()) {
                *e += h;
            }
        }
        // A gradient has no offset of 1.
        let plain = Config { norm_plus_one: false, ..case.config.clone() };
        for slot in Slot::all(&case.config) {
            let name = slot.hf_name(&case.config);
            case.check(&name, &grads.read(&plain, slot), &case.read(&format!("grad/{name}")), GRADIENT, &mut worst);
        }
        println!("{family}: gradients differ by at most {:.2e} of a tensor's largest entry ({})", worst.0, worst.1);
    }
}

#[test]
fn every_adapter_gradient_matches_the_reference() {
    for family in FAMILIES {
        let case = Case::open(family);
        let adapter = model::peft::load(&case.folder.join("adapter"), &case.config).unwrap();
        let zeros = Adapter::zeroed(&case.config, adapter.rank, adapter.alpha, &adapter.targets).unwrap();
        let mut grads = Grads { adapter: Some(zeros), ..Grads::default() };
        let values = case.train(Some(&adapter), &mut grads);
        case.check_values("lora", &values);
        let mut worst = (0.0, String::new());
        let grads = grads.adapter.unwrap();
        for layer in 0..case.config.n_layers {
            for target in Target::ALL {
                for (half, got) in [("A", grads.read_a(layer, target)), ("B", grads.read_b(layer, target))] {
                    let (block, name) = (target.block(), target.name());
                    let name = format!("base_model.model.model.layers.{layer}.{block}.{name}.lora_{half}.weight");
                    case.check(&name, &got, &case.read(&format!("lora/grad/{name}")), GRADIENT, &mut worst);
                }
            }
        }
        println!("{family}: adapter gradients differ by at most {:.2e} ({})", worst.0, worst.1);
    }
}
