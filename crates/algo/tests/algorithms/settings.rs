//! Settings: what is refused, what is resolved, and that every single one has an effect (CASES H12).

use std::collections::BTreeSet;

use crate::shared::{answer, evaluate_step, group, moved_policy, settings};
use episode::{Group, Outcome, Part, StopReason};
use surefoot_algo::Settings;

fn error(text: &str) -> String {
    toml::from_str::<Settings>(text).expect_err(text).message().to_owned()
}

/// Two tasks to compare, one flat, one attempt cut off, one with feedback.
fn groups() -> Vec<Group> {
    let mut groups = vec![group("a", &[1.0, 0.0, 0.25, 0.5]), group("b", &[0.2, 1.0]), group("c", &[0.5, 0.5])];
    groups[0].episodes[2].stop = StopReason::Length;
    let said = Part { feedback: Some("off by one".to_owned()), ..Part::new("unit", 0.5, 1.0) };
    groups[2].episodes[1].outcome = Outcome::Graded { reward: 0.5, parts: vec![said] };
    groups
}

/// Everything a step makes of an algorithm's settings, as text: whom it asks what, what it admits, its plan, its loss and
/// every derivative under a policy that has moved.
fn effect(text: &str) -> String {
    let settings = settings(text);
    let algorithm = settings.algorithm();
    let groups = groups();
    let (requests, answers) = answer(algorithm, &groups);
    let signals = algorithm.signals(&groups, &answers).expect(text);
    let admitted: Vec<_> = groups.iter().map(|g| algorithm.admit(g)).collect();
    let (reference, teacher) = (algorithm.reference(), algorithm.teacher());
    let plan = signals.plan.batches(groups.len());
    let (loss, rows) = evaluate_step(&signals, &groups, &|_, place, sequence| moved_policy(place, sequence));
    let grads: Vec<_> = rows.iter().flatten().map(|r| (&r.dlogp, &r.dentropy, &r.dvalue, &r.dtop)).collect();
    let draws = algorithm.max_draws();
    format!("{requests:?} {reference:?} {teacher:?} {draws} {admitted:?} {plan:?}\n{loss} {grads:?}")
}

/// (key, what is set beside it, the change), for every algorithm that has the key: the change must alter something.
const SHARED: &[(&str, &str, &str)] = &[
    ("advantage_std", "", "advantage_std = 'population'"),
    ("std_eps", "", "std_eps = 0.5"),
    ("ratio_min", "", "ratio_min = 0.5"),
    ("ratio_max", "", "ratio_max = 3"),
    ("dual_clip", "", "dual_clip = 2"),
    ("reduction", "", "reduction = 'sequence_mean'"),
    ("reduction", "", "reduction = 'token_mean'"),
    ("reduction", "", "reduction = 'sequence_sum'"),
    ("reduction", "", "reduction = 'sum'"),
    ("horizon", "reduction = 'fixed_horizon'\nhorizon = 4", "reduction = 'fixed_horizon'\nhorizon = 8"),
    ("kl", "", "kl.coefficient = 0.1"),
    ("kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.estimator = 'k2'"),
    ("kl", "kl.coefficient = 0.1\nkl.estimator = 'k2'", "kl.coefficient = 0.1\nkl.estimator = 'k1'"),
    ("kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.place = 'reward'"),
    ("kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.place = 'loss'"),
    ("kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.reference = 'base'"),
    ("kl", "kl.coefficient = 0.1", "kl.coefficient = 0.1\nkl.reference = 'ema'\nkl.ema_rate = 0.1"),
    (
        "kl",
        "kl.coefficient = 0.1\nkl.reference = 'every_n'\nkl.every = 10",
        "kl.coefficient = 0.1\nkl.reference = 'every_n'\nkl.every = 20",
    ),
    ("entropy", "", "entropy.coefficient = 0.01"),
    ("correction", "", "correction.rule = 'token_tis'"),
    ("correction", "correction.rule = 'token_tis'", "correction.rule = 'token_tis'\ncorrection.cap = 1.5"),
    ("select", "", "select.rule = 'top_entropy'"),
    ("select", "select.rule = 'top_entropy'", "select.rule = 'top_entropy'\nselect.share = 0.5"),
    ("select", "", "select.rule = 'clip_cov'\nselect.share = 0.5\nselect.low = -9\nselect.high = 9"),
    ("select", "", "select.rule = 'kl_cov'\nselect.share = 0.5"),
    ("truncated", "", "truncated = 'mask'"),
    ("truncated", "", "truncated = 'penalise'"),
    ("truncated_penalty", "truncated = 'penalise'", "truncated = 'penalise'\ntruncated_penalty = 0.25"),
    ("overlong", "overlong = {}", "overlong.limit = 4\noverlong.buffer = 2"),
    ("overlong", "overlong.limit = 4\noverlong.buffer = 2", "overlong.limit = 5\noverlong.buffer = 2"),
    ("overlong", "overlong.limit = 4\noverlong.buffer = 2", "overlong.limit = 4\noverlong.buffer = 3"),
    (
        "overlong",
        "overlong.limit = 4\noverlong.buffer = 2",
        "overlong.limit = 4\noverlong.buffer = 2\noverlong.factor = 0.5",
    ),
    ("epochs", "", "epochs = 2"),
    ("minibatch_groups", "", "minibatch_groups = 1"),
    ("flat", "entropy.coefficient = 0.1", "entropy.coefficient = 0.1\nflat = 'drop'"),
    ("gamma", "", "gamma = 0.5"),
    ("whiten", "", "whiten = false"),
    ("whiten", "", "whiten = true"),
    ("pairs", "", "pairs = 'ranked'"),
];

/// (algorithm, key, what is set beside it, the change), of settings that only one has.
const OWN: &[(&str, &str, &str, &str)] = &[
    ("reinforce", "baseline", "", "baseline = 'batch_mean'"),
    ("ppo", "lambda", "", "lambda = 0.5"),
    ("ppo", "value_clip", "", "value_clip = inf"),
    ("ppo", "value_coefficient", "", "value_coefficient = 0.5"),
    ("dapo", "max_draws", "", "max_draws = 2"),
    ("sapo", "tau_positive", "", "tau_positive = 2"),
    ("sapo", "tau_negative", "", "tau_negative = 2"),
    ("dpo", "beta", "", "beta = 0.5"),
    ("dro", "beta", "", "beta = 0.5"),
    ("raft", "raft", "", "raft.threshold = 0.5"),
    ("distill", "teacher", "", "teacher = 'larger'"),
    ("distill", "coefficient", "", "coefficient = 0.5"),
    ("sdpo", "alpha", "", "alpha = 0"),
    ("sdpo", "alpha", "", "alpha = 1"),
    ("sdpo", "top_k", "", "top_k = 3"),
    ("sdpo", "top_k", "", "top_k = 0"),
    ("sdpo", "is_cap", "", "is_cap = 1"),
    ("sdpo", "teacher", "", "teacher = 'current'"),
    ("sdpo", "teacher", "", "teacher = 'frozen'"),
    ("sdpo", "teacher_rate", "", "teacher_rate = 0.5"),
    ("sdpo", "success", "", "success = 0.5"),
    ("oapl", "beta1", "", "beta1 = 0.1"),
    ("oapl", "beta2", "", "beta2 = 0.1"),
];

/// (algorithm, the change, how it is refused, where others have it).
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "max_rl",
        "truncated = 'penalise'",
        "`truncated = \"penalise\"` can make a reward negative, which `max_rl` cannot read: use `truncated = \"mask\"`",
    ),
    (
        "max_rl",
        "kl.coefficient = 0.1\nkl.place = 'reward'",
        "`kl.place = \"reward\"` can make a reward negative, which `max_rl` cannot read: use `kl.place = \"loss\"`",
    ),
];

/// The keys an algorithm has: the refusal of an unknown one lists them.
fn known(kind: &str) -> BTreeSet<String> {
    let refusal = error(&format!("kind = '{kind}'\nno_such_key = 1"));
    refusal.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[test]
fn h12_every_setting_of_every_algorithm_changes_something() {
    for kind in Settings::NAMES {
        let keys = known(kind);
        let mut tested = BTreeSet::new();
        let own = OWN.iter().filter(|e| e.0 == *kind).map(|e| (e.1, e.2, e.3));
        for (key, before, after) in SHARED.iter().copied().filter(|e| keys.contains(e.0)).chain(own) {
            tested.insert(key.to_owned());
            let with = |extra: &str| format!("kind = '{kind}'\n{extra}");
            let refused = |text: &str| REFUSED.iter().find(|r| r.0 == *kind && text.starts_with(r.1));
            if let Some((_, _, want)) = refused(after) {
                assert_eq!(error(&with(after)), *want);
                continue;
            }
            let defaults = toml::to_string(&settings(&with(before))).unwrap();
            if toml::to_string(&settings(&with(after))).unwrap() == defaults {
                // This algorithm's own default.
                continue;
            }
            assert_ne!(effect(&with(before)), effect(&with(after)), "`{key}` of `{kind}`: {after}");
        }
        assert_eq!(keys, tested, "`{kind}` has settings without a test of their effect");
        let docs = Settings::docs(kind).unwrap();
        for key in &keys {
            let explained = docs.contains(&format!("`{key}`")) || docs.contains(&format!("`{key}."));
            assert!(explained, "the page of `{kind}` does not explain `{key}`");
        }
    }
}

#[test]
fn c4_every_named_rule_runs_and_differs_from_every_other() {
    let mut seen = BTreeSet::new();
    for rule in loss::Correction::NAMES {
        // Where everything here would be left out, a bound that lets some of it through.
        let bound = if matches!(*rule, "k2" | "k3" | "m2po") { "\ncorrection.tau = 0.25" } else { "" };
        let all = effect(&format!("kind = 'grpo'\ncorrection.rule = '{rule}'{bound}"));
        assert!(seen.insert(all), "`correction.rule = {rule}` does what another one does");
    }
    for (rule, more) in [
        ("token_mask", "correction.high = 2"),
        ("token_mask", "correction.low = 0.9"),
        ("sequence_mask", "correction.high = 50"),
        ("geometric", "correction.high = 3"),
        ("sequence_tis", "correction.cap = 5"),
        ("k2", "correction.tau = 9"),
        ("k3", "correction.tau = 9"),
        ("m2po", "correction.tau = 9"),
    ] {
        let plain = format!("kind = 'grpo'\ncorrection.rule = '{rule}'");
        assert_ne!(effect(&plain), effect(&format!("{plain}\n{more}")), "{rule} {more}");
    }
    let mut seen = BTreeSet::new();
    for rule in loss::Select::NAMES {
        let share = if *rule == "none" { "" } else { "\nselect.share = 0.4" };
        let band = if *rule == "clip_cov" { "\nselect.low = -9\nselect.high = 9" } else { "" };
        let all = effect(&format!("kind = 'grpo'\nselect.rule = '{rule}'{share}{band}"));
        assert!(seen.insert(all), "`select.rule = {rule}` does what another one does");
    }
}

#[test]
fn h12_a_setting_that_would_do_nothing_is_refused() {
    let want =
        "`std_eps` does nothing with `advantage_std = \"none\"`: leave it out, or set `advantage_std = \"sample\"`";
    assert_eq!(error("kind = 'grpo'\nadvantage_std = 'none'\nstd_eps = 1e-6"), want);
    let want = "`horizon` does nothing with `reduction = \"token_mean\"`: leave it out, or set `reduction = \
                \"fixed_horizon\"`";
    for kind in ["sft", "dr_grpo"] {
        assert_eq!(error(&format!("kind = '{kind}'\nreduction = 'token_mean'\nhorizon = 8")), want);
    }
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
    for (line, want) in [
        (
            "kl.reference = 'base'",
            "`kl.reference` does nothing with `kl.coefficient = 0`: leave it out, or set `kl.coefficient`",
        ),
        (
            "kl.coefficient = 1\nkl.ema_rate = 0.1",
            "`kl.ema_rate` does nothing with `kl.reference = \"frozen\"`: leave it out, or set `kl.reference = \"ema\"`",
        ),
        (
            "kl.coefficient = 1\nkl.reference = 'ema'\nkl.ema_rate = 0.1\nkl.every = 5",
            "`kl.every` does nothing with `kl.reference = \"ema\"`: leave it out, or set `kl.reference = \"every_n\"`",
        ),
        ("kl.coefficient = 1\nkl.reference = 'ema'", "`kl.reference = \"ema\"` needs `kl.ema_rate`, got none"),
        ("kl.coefficient = 1\nkl.reference = 'every_n'", "`kl.reference = \"every_n\"` needs `kl.every`, got none"),
        ("overlong.buffer = 2", "`overlong.buffer` needs `overlong.limit`, got none"),
        ("overlong.factor = 2", "`overlong.factor` needs `overlong.limit`, got none"),
        ("overlong.limit = 2", "`overlong.limit` needs `overlong.buffer`, got none"),
        (
            "flat = 'drop'",
            "`flat` does nothing with a KL in the reward, or a loss with neither a KL nor the entropy: leave it out, or set \
             `kl.coefficient` with `kl.place = \"loss\"`, or `entropy.coefficient`",
        ),
    ] {
        assert_eq!(error(&format!("kind = 'grpo'\n{line}")), want);
    }
    let want = "`alpha` does nothing with `top_k = 0`: leave it out, or set `top_k = 100`";
    assert_eq!(error("kind = 'sdpo'\ntop_k = 0\nalpha = 0.5"), want);
    let want =
        "`teacher_rate` does nothing with a teacher that does not follow: leave it out, or set `teacher = \"ema\"`";
    assert_eq!(error("kind = 'sdpo'\nteacher = 'frozen'\nteacher_rate = 0.1"), want);
}

#[test]
fn what_makes_no_sense_with_an_algorithm_is_refused_with_what_does() {
    for kind in ["reinforce", "rloo"] {
        let want = format!(
            "`correction.rule = \"decoupled\"` does nothing with `{kind}`, whose loss has no ratio π/π_old: leave it out, or \
             set `correction.rule = \"token_tis\"`"
        );
        assert_eq!(error(&format!("kind = '{kind}'\ncorrection.rule = 'decoupled'")), want);
    }
    for kind in ["grpo", "dr_grpo", "reinforce_pp", "max_rl", "ppo", "dapo", "gspo", "cispo", "sapo", "distill"] {
        settings(&format!("kind = '{kind}'\ncorrection.rule = 'decoupled'"));
    }
    let got = error("kind = 'dpo'\ncorrection.rule = 'token_tis'");
    let want = "unknown field `correction`, expected one of `beta`, `pairs`, `epochs`, `minibatch_groups`; it is a setting of \
                `grpo`, `dr_grpo`, `rloo`, `reinforce`, `reinforce_pp`, `max_rl`, `ppo`, `dapo`, `gspo`, `cispo`, `sapo`, \
                `distill`";
    assert_eq!(got, want);
    let got = error("kind = 'gspo'\nselect.rule = 'top_entropy'");
    assert!(got.contains("it is a setting of `grpo`") && !got.contains("`oapl`"), "{got}");
}

#[test]
fn unknown_kinds_keys_and_words_are_refused_with_the_known_ones() {
    let names: Vec<String> = Settings::NAMES.iter().map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    assert_eq!(error("kind = 'ppo2'"), format!("unknown variant `ppo2`, expected one of {names}"));
    assert_eq!(error("ratio_min = 0.5"), "missing field `kind`");
    let got = error("kind = 'sft'\nlearning_rate = 0.5");
    assert_eq!(got, "unknown field `learning_rate`, expected `reduction` or `horizon`");
    let got = error("kind = 'grpo'\nadvantage_std = 'both'");
    assert_eq!(got, "unknown variant `both`, expected one of `population`, `sample`, `none`");
    let got = error("kind = 'grpo'\nkl.coef = 0.1");
    let keys = "`coefficient`, `estimator`, `place`, `reference`, `ema_rate`, `every`";
    assert_eq!(got, format!("unknown field `coef`, expected one of {keys}"));
    let got = error("kind = 'grpo'\ncorrection.rule = 'tis'");
    assert!(got.starts_with("unknown variant `tis`, expected one of `none`, `token_tis`"), "{got}");
    let got = Settings::of("gpro").unwrap_err().to_string();
    assert_eq!(got, format!("no algorithm `gpro`, needed one of {names}"));
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
        (
            "kl.coefficient = 1\nkl.reference = 'ema'\nkl.ema_rate = 2",
            "`kl.ema_rate` is 2, needed a number above 0, at most 1",
        ),
        (
            "kl.coefficient = 1\nkl.reference = 'every_n'\nkl.every = 0",
            "`kl.every` is 0, needed a whole number at least 1",
        ),
        ("entropy.coefficient = -1", "`entropy.coefficient` is -1, needed a finite number at least 0"),
        ("epochs = 0", "`epochs` is 0, needed a whole number at least 1"),
        ("minibatch_groups = 0", "`minibatch_groups` is 0, needed a whole number at least 1"),
        ("reduction = 'fixed_horizon'\nhorizon = 0", "`horizon` is 0, needed a whole number at least 1"),
        (
            "correction.rule = 'token_tis'\ncorrection.cap = 0.5",
            "`correction.cap` is 0.5, needed a finite number at least 1",
        ),
        ("truncated = 'penalise'\ntruncated_penalty = 0", "`truncated_penalty` is 0, needed a finite number above 0"),
        (
            "overlong.limit = 4\noverlong.buffer = 5",
            "`overlong.buffer` is 5, needed a whole number from 1 to `overlong.limit`",
        ),
        (
            "overlong.limit = 4\noverlong.buffer = 4\noverlong.factor = -1",
            "`overlong.factor` is -1, needed a finite number above 0",
        ),
    ] {
        assert_eq!(error(&format!("kind = 'grpo'\n{line}")), want);
    }
    for (kind, line, want) in [
        ("ppo", "gamma = -1", "`gamma` is -1, needed a number from 0 to 1"),
        ("ppo", "lambda = 1.5", "`lambda` is 1.5, needed a number from 0 to 1"),
        ("ppo", "value_clip = 0", "`value_clip` is 0, needed a number above 0, or `inf`"),
        ("ppo", "value_coefficient = 0", "`value_coefficient` is 0, needed a finite number above 0"),
        ("reinforce_pp", "gamma = 1.5", "`gamma` is 1.5, needed a number from 0 to 1"),
        ("dapo", "max_draws = 0", "`max_draws` is 0, needed a whole number at least 1"),
        ("raft", "raft.threshold = nan", "`raft.threshold` is NaN, needed a finite number"),
        ("distill", "coefficient = 0", "`coefficient` is 0, needed a finite number above 0"),
        ("sdpo", "alpha = 2", "`alpha` is 2, needed a number from 0 to 1"),
        ("sdpo", "is_cap = 0.5", "`is_cap` is 0.5, needed a finite number at least 1"),
        ("sdpo", "teacher_rate = 0", "`teacher_rate` is 0, needed a number above 0, at most 1"),
        ("sdpo", "success = inf", "`success` is inf, needed a finite number"),
        ("oapl", "beta1 = 0", "`beta1` is 0, needed a finite number above 0"),
    ] {
        assert_eq!(error(&format!("kind = '{kind}'\n{line}")), want);
    }
    for (kind, key) in
        [("dpo", "beta"), ("dro", "beta"), ("oapl", "beta2"), ("sapo", "tau_positive"), ("sapo", "tau_negative")]
    {
        let got = error(&format!("kind = '{kind}'\n{key} = -1"));
        assert!(got.starts_with(&format!("`{key}` is -1, needed ")), "{kind}: {got}");
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
fn published_defaults_are_those_that_their_source_names() {
    for (kind, lines) in [
        ("dr_grpo", &["reduction = \"fixed_horizon\"", "horizon = 3000"][..]),
        ("dapo", &["ratio_min = 0.8", "ratio_max = 1.28", "limit = 20480", "buffer = 4096", "factor = 1.0"]),
        ("gspo", &["ratio_min = 0.9997", "ratio_max = 1.0004", "reduction = \"sequence_mean\""]),
        ("cispo", &["ratio_min = 0.0", "ratio_max = 5.0", "reduction = \"token_mean\""]),
        ("sapo", &["tau_positive = 1.0", "tau_negative = 1.05"]),
        (
            "ppo",
            &[
                "gamma = 1.0",
                "lambda = 0.95",
                "value_clip = 0.2",
                "epochs = 1",
                "place = \"reward\"",
                "estimator = \"k1\"",
            ],
        ),
        ("dpo", &["beta = 0.1"]),
        ("dro", &["beta = 0.05"]),
        ("oapl", &["beta1 = 1.0", "beta2 = 0.001"]),
        ("sdpo", &["alpha = 0.5", "top_k = 100", "is_cap = 2.0", "teacher = \"ema\"", "teacher_rate = 0.05"]),
        ("rloo", &["reduction = \"sequence_sum\"", "place = \"reward\"", "estimator = \"k1\""]),
        ("reinforce_pp", &["whiten = true", "place = \"reward\"", "estimator = \"k1\""]),
    ] {
        let saved = toml::to_string(&Settings::of(kind).unwrap()).unwrap();
        for line in lines {
            assert!(saved.lines().any(|l| l == *line), "`{line}` is not in `{kind}`:\n{saved}");
        }
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

#[test]
fn a_run_that_distils_needs_to_know_from_whom() {
    let got = settings("kind = 'distill'").algorithm().check(1).unwrap_err();
    assert_eq!(got.to_string(), "`distill` needs `teacher`, got none");
    assert_eq!(settings("kind = 'distill'\nteacher = 'larger'").algorithm().check(1), Ok(()));
}
