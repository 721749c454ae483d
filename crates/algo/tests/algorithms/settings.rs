//! Settings: what is refused, what is resolved, and that every single one has an effect (CASES H12).

use std::collections::BTreeSet;

use crate::shared::{group, settings, values};
use episode::StopReason;
use loss::{Row, TokenValues, Totals, evaluate};
use surefoot_algo::{Answers, PerSequence, Request, Settings};

fn error(text: &str) -> String {
    toml::from_str::<Settings>(text).expect_err(text).message().to_owned()
}

/// Everything a step makes of an algorithm's settings, as text: requests, plan, loss, metrics and derivatives.
fn effect(text: &str) -> String {
    let settings = settings(text);
    let algorithm = settings.algorithm();
    let mut groups = vec![group("a", &[1.0, 0.0, 0.0, 0.5]), group("b", &[0.2, 0.9]), group("c", &[0.5, 0.5])];
    groups[0].episodes[2].stop = StopReason::Length;
    let requests = algorithm.requests(&groups, &Answers::new());
    let mut answers = Answers::new();
    let shifted = |shift: f32| -> PerSequence<Vec<f32>> {
        let episode = |e: &episode::Episode| e.sequences.iter().map(|s| moved(s.logp(), shift)).collect();
        groups.iter().map(|g| g.episodes.iter().map(episode).collect()).collect()
    };
    for request in &requests {
        match request {
            Request::Reference => answers.reference = Some(shifted(-0.5)),
            Request::Now(_) => answers.now = Some(values(shifted(0.75))),
            Request::Teacher(_) => panic!("{text} has no teacher"),
        }
    }
    let signals = algorithm.signals(&groups, &answers).expect(text);
    let batch = signals.batch(&groups, 0..groups.len());
    let totals = Totals::count(batch.iter().flatten().map(|(s, _)| s.sampled()));
    let mut out = format!("{requests:?} {:?}", signals.plan.batches(groups.len()));
    for sequences in &batch {
        // The policy has moved far enough, in both directions, for every bound to bite.
        let now: Vec<TokenValues> = sequences
            .iter()
            .enumerate()
            .map(|(i, (s, _))| moved(s.logp(), [1.5, -1.5, 1.25, -0.75][i % 4]))
            .map(|logp| TokenValues::of(logp.clone(), vec![0.5; logp.len()]))
            .collect();
        let rows: Vec<Row<'_>> =
            sequences.iter().zip(&now).map(|((s, signal), now)| Row::new(s.sampled(), now, s.logp(), signal)).collect();
        let got = evaluate(&signals.loss, &totals, &rows).expect(text);
        let grads: Vec<_> = got.rows.iter().map(|r| (&r.dlogp, &r.dentropy)).collect();
        out.push_str(&format!("\n{} {grads:?}", got.loss));
    }
    out
}

fn moved(logp: &[f32], shift: f32) -> Vec<f32> {
    logp.iter().map(|l| l + shift).collect()
}

/// (key, what is set beside it, the change): the change must alter something that a step computes.
const EFFECTS: &[(&str, &str, &str, &str)] = &[
    ("grpo", "advantage_std", "", "advantage_std = 'population'"),
    ("grpo", "std_eps", "", "std_eps = 0.5"),
    ("grpo", "ratio_min", "", "ratio_min = 0.1"),
    ("grpo", "ratio_max", "", "ratio_max = 9"),
    ("grpo", "dual_clip", "", "dual_clip = 2"),
    ("grpo", "reduction", "", "reduction = 'token_mean'"),
    ("grpo", "reduction", "reduction = 'sum'", "reduction = 'sequence_sum'"),
    ("grpo", "horizon", "reduction = 'fixed_horizon'\nhorizon = 4", "reduction = 'fixed_horizon'\nhorizon = 8"),
    ("grpo", "kl", "", "kl.coefficient = 0.1"),
    ("grpo", "flat", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nflat = 'drop'"),
    ("grpo", "kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.estimator = 'k2'"),
    ("grpo", "kl", "kl.coefficient = 0.1\nkl.estimator = 'k2'", "kl.coefficient = 0.1\nkl.estimator = 'k1'"),
    ("grpo", "kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.place = 'reward'"),
    ("grpo", "entropy", "", "entropy.coefficient = 0.01"),
    ("grpo", "epochs", "", "epochs = 2"),
    ("grpo", "minibatch_groups", "", "minibatch_groups = 1"),
    ("grpo", "correction", "", "correction.rule = 'token_tis'"),
    ("grpo", "correction", "correction.rule = 'token_tis'", "correction.rule = 'token_tis'\ncorrection.cap = 1.5"),
    ("grpo", "truncated", "", "truncated = 'mask'"),
    ("grpo", "truncated", "", "truncated = 'penalise'"),
    ("grpo", "truncated_penalty", "truncated = 'penalise'", "truncated = 'penalise'\ntruncated_penalty = 0.25"),
    ("reinforce", "baseline", "", "baseline = 'batch_mean'"),
    ("reinforce", "reduction", "", "reduction = 'token_mean'"),
    ("reinforce", "horizon", "reduction = 'fixed_horizon'\nhorizon = 4", "reduction = 'fixed_horizon'\nhorizon = 8"),
    ("reinforce", "kl", "", "kl.coefficient = 0.1"),
    ("reinforce", "kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.estimator = 'k2'"),
    ("reinforce", "kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.place = 'reward'"),
    ("reinforce", "entropy", "", "entropy.coefficient = 0.01"),
    ("reinforce", "correction", "", "correction.rule = 'token_tis'"),
    ("reinforce", "correction", "correction.rule = 'token_tis'", "correction.rule = 'token_tis'\ncorrection.cap = 1.5"),
    ("reinforce", "truncated", "", "truncated = 'mask'"),
    ("reinforce", "truncated", "", "truncated = 'penalise'"),
    ("reinforce", "truncated_penalty", "truncated = 'penalise'", "truncated = 'penalise'\ntruncated_penalty = 0.25"),
    ("sft", "reduction", "", "reduction = 'sequence_mean'"),
    ("sft", "horizon", "reduction = 'fixed_horizon'\nhorizon = 4", "reduction = 'fixed_horizon'\nhorizon = 8"),
];

#[test]
fn h12_every_setting_changes_something() {
    for (kind, key, before, after) in EFFECTS {
        let with = |extra: &str| effect(&format!("kind = '{kind}'\n{extra}"));
        assert_ne!(with(before), with(after), "`{key}` of `{kind}`: {after}");
    }
    for kind in Settings::NAMES {
        // The refusal of an unknown key lists the known ones.
        let known = error(&format!("kind = '{kind}'\nno_such_key = 1"));
        let known: BTreeSet<String> = known.split('`').skip(3).step_by(2).map(str::to_owned).collect();
        let tested = EFFECTS.iter().filter(|e| e.0 == *kind).map(|e| e.1.to_owned());
        assert_eq!(known, tested.collect(), "`{kind}` has settings without a test of their effect");
        let docs = Settings::docs(kind).unwrap();
        for key in &known {
            let alone = docs.contains(&format!("`{key}`")) || docs.contains(&format!("`{key}."));
            assert!(alone, "the page of `{kind}` does not explain `{key}`");
        }
    }
}

#[test]
fn h12_a_setting_that_would_do_nothing_is_refused() {
    let want =
        "`std_eps` does nothing with `advantage_std = \"none\"`: leave it out, or set `advantage_std = \"sample\"`";
    assert_eq!(error("kind = 'grpo'\nadvantage_std = 'none'\nstd_eps = 1e-6"), want);
    let want = "`horizon` does nothing with `reduction = \"token_mean\"`: leave it out, or set `reduction = \
                \"fixed_horizon\"`";
    assert_eq!(error("kind = 'sft'\nhorizon = 8"), want);
    assert_eq!(
        error("kind = 'grpo'\nreduction = 'fixed_horizon'"),
        "`reduction = \"fixed_horizon\"` needs `horizon`, got none"
    );
    let want = "`truncated_penalty` does nothing with `truncated = \"keep\"`: leave it out, or set `truncated = \
                \"penalise\"`";
    assert_eq!(error("kind = 'reinforce'\ntruncated_penalty = 1"), want);
    assert_eq!(
        error("kind = 'grpo'\ncorrection.rule = 'none'\ncorrection.cap = 2"),
        "unknown field `cap`, there are no fields"
    );
}

#[test]
fn unknown_kinds_keys_and_words_are_refused_with_the_known_ones() {
    assert_eq!(error("kind = 'ppo2'"), "unknown variant `ppo2`, expected one of `grpo`, `reinforce`, `sft`");
    assert_eq!(error("ratio_min = 0.5"), "missing field `kind`");
    let got = error("kind = 'sft'\nratio_min = 0.5");
    assert_eq!(got, "unknown field `ratio_min`, expected `reduction` or `horizon`");
    let got = error("kind = 'grpo'\nadvantage_std = 'both'");
    assert_eq!(got, "unknown variant `both`, expected one of `population`, `sample`, `none`");
    let got = error("kind = 'grpo'\nkl.coef = 0.1");
    assert_eq!(got, "unknown field `coef`, expected one of `coefficient`, `estimator`, `place`");
    let got = error("kind = 'grpo'\ncorrection.rule = 'tis'");
    assert_eq!(got, "unknown variant `tis`, expected `none` or `token_tis`");
    assert_eq!(
        Settings::of("gpro").unwrap_err().to_string(),
        "no algorithm `gpro`, needed one of `grpo`, `reinforce`, `sft`"
    );
}

#[test]
fn values_outside_their_range_are_named() {
    for (line, want) in [
        ("ratio_min = 1.5", "`ratio_min` is 1.5, needed a number from 0 to 1"),
        ("ratio_max = inf", "`ratio_max` is inf, needed a finite number at least 1"),
        ("dual_clip = 1", "`dual_clip` is 1, needed a finite number above 1"),
        ("std_eps = -1", "`std_eps` is -1, needed a finite number at least 0"),
        ("kl.coefficient = nan", "`kl.coefficient` is NaN, needed a finite number at least 0"),
        ("kl.coefficient = -1\nkl.place = 'reward'", "`kl.coefficient` is -1, needed a finite number at least 0"),
        ("entropy.coefficient = -1", "`entropy.coefficient` is -1, needed a finite number at least 0"),
        ("epochs = 0", "`epochs` is 0, needed a whole number at least 1"),
        ("minibatch_groups = 0", "`minibatch_groups` is 0, needed a whole number at least 1"),
        ("reduction = 'fixed_horizon'\nhorizon = 0", "`horizon` is 0, needed a whole number at least 1"),
        (
            "correction.rule = 'token_tis'\ncorrection.cap = 0.5",
            "`correction.cap` is 0.5, needed a finite number at least 1",
        ),
        ("truncated = 'penalise'\ntruncated_penalty = 0", "`truncated_penalty` is 0, needed a finite number above 0"),
    ] {
        assert_eq!(error(&format!("kind = 'grpo'\n{line}")), want);
    }
}

#[test]
fn what_is_saved_is_what_runs_and_reads_back_the_same() {
    for kind in Settings::NAMES {
        let typed = settings(&format!("kind = '{kind}'"));
        assert_eq!(typed, Settings::of(kind).unwrap());
        let saved = toml::to_string(&typed).unwrap();
        assert_eq!(settings(&saved), typed, "{saved}");
        assert_eq!(typed.name(), *kind);
    }
    let saved = toml::to_string(&settings("kind = 'grpo'\ntruncated = 'penalise'")).unwrap();
    for line in [
        "kind = \"grpo\"",
        "advantage_std = \"sample\"",
        "std_eps = 0.000001",
        "ratio_min = 0.8",
        "ratio_max = 1.2",
        "reduction = \"sequence_mean\"",
        "epochs = 1",
        "truncated_penalty = 1.0",
        "estimator = \"k3\"",
        "rule = \"none\"",
    ] {
        assert!(saved.lines().any(|l| l == line), "`{line}` is not in\n{saved}");
    }
}

#[test]
fn every_algorithm_has_a_page_with_its_parts() {
    for kind in Settings::NAMES {
        let docs = Settings::docs(kind).unwrap();
        for part in ["Formula: ", "Source: ", "| setting | default | meaning |", "Needs: ", "Watch: "] {
            assert!(docs.contains(part), "the page of `{kind}` has no `{part}`");
        }
    }
    assert!(Settings::docs("gpro").is_err());
}
