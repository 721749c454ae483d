//! The contract once more, in short, on the real SmolLM2-135M; skipped where its file is not.

use std::path::PathBuf;

use policy::{Job, Learner, Sampling, TokenGrads, TokenValues, ValueAt};
use surefoot_train::{Engine, Trainable};
use tensor::Isa;

use crate::support::*;

fn place() -> PathBuf {
    let get = |name: &str| std::env::var(name).ok();
    let own = get("SUREFOOT_TEST_MODEL").filter(|v| !v.is_empty()).map(PathBuf::from);
    own.unwrap_or_else(|| {
        store::models_folder(&store::default_root(&get)).join("smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf")
    })
}

/// Three samples of a prompt over a page, one of a prompt that it begins with, one that is cut from all others.
fn jobs() -> Vec<Job> {
    let how = [
        Sampling::plain(1.0, 5, Vec::new()),
        Sampling { banned: vec![198, 30], ..Sampling::plain(0.8, 4, Vec::new()) },
        Sampling { top_k: Some(40), ..Sampling::plain(1.0, 5, Vec::new()) },
        Sampling::plain(0.0, 5, Vec::new()),
        Sampling::plain(1.0, 3, Vec::new()),
    ];
    let prompts = [tokens(1, 36), tokens(1, 36), tokens(1, 36), tokens(1, 20), tokens(2, 3)];
    (0..5).map(|i| job(i as u64, &prompts[i], &how[i])).collect()
}

#[test]
fn the_contract_holds_on_the_real_model() {
    let path = place();
    if !path.is_file() {
        println!("skipped: the contract on the real model needs the file `{}`", path.display());
        return;
    }
    let weights = model::load(&path).unwrap();
    let engine = |machine: &Machine| {
        let trainable = Trainable::Lora { rank: 8, alpha: 16.0, targets: vec!["all".to_owned()] };
        let (weights, settings) = (weights.clone(), machine.settings.clone());
        Engine::new(machine.cpu(), weights, None, trainable, settings, 1).unwrap().with_value_head()
    };
    let roomy = |change: fn(&mut surefoot_train::EngineSettings)| {
        Machine::new(|s| {
            s.cache_mb = 64;
            change(s);
        })
    };
    let plain = roomy(|_| ());
    let mut others = vec![roomy(|s| (s.batch, s.prompt_rows, s.micro_batch_rows) = (1, 7, 1))];
    let narrow = Isa::available().into_iter().find(|isa| *isa == Isa::Avx2 && *isa != Isa::best());
    others.extend(narrow.map(|isa| Machine { isa, n_threads: 1, ..plain.clone() }));

    let jobs = jobs();
    // A step of training first, so that the adapter and the value head do something, then samples, their values and one
    // more step.
    let run = |machine: &Machine| {
        let mut engine = engine(machine);
        let groups: Vec<Vec<Line>> = (0..2)
            .map(|g| (0..2).map(|i| Line::new(&tokens(10 + g, 12), &tokens(20 + 2 * g + i, 5))).collect())
            .collect();
        let train = |engine: &mut Engine| {
            let mut loss = |index: usize, values: &[TokenValues]| {
                let pull = |list: &[f32]| vec![0.02 * (index as f32 - 0.3); list.len()];
                let one = |v: &TokenValues| TokenGrads { dvalue: pull(&v.value), ..TokenGrads::of(pull(&v.logp)) };
                Ok(values.iter().map(one).collect())
            };
            engine.forward_backward(&asking(&groups, ValueAt::After, 0), &mut loss).unwrap();
            engine.update(&step()).unwrap();
        };
        train(&mut engine);
        let said = sample(&mut engine, &jobs);
        for (job, said) in jobs.iter().zip(&said) {
            let s = &job.sampling;
            let temperature = if s.temperature == 0.0 { 1.0 } else { s.temperature };
            let group = [vec![Line::new(&job.prompt, &said.tokens)]];
            let values = engine.forward(&batch(&group, temperature, &s.banned)).unwrap().remove(0).remove(0);
            assert_eq!(bits(&values.logp[job.prompt.len()..]), said.logp, "job {}: recorded and trained", job.id);
        }
        let likely = engine.forward(&asking(&groups, ValueAt::Before, 100)).unwrap();
        let likely: Vec<Found> = likely.iter().flatten().map(found).collect();
        train(&mut engine);
        (said, likely, saved(&engine))
    };
    let want = run(&plain);
    for machine in &others {
        let got = run(machine);
        same(&got.0, &want.0, &format!("{machine:?}"));
        assert!(got.1 == want.1, "values and most likely tokens, {machine:?}");
        assert!(got.2 == want.2, "the weights after two updates, {machine:?}");
    }
}
