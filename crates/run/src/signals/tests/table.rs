//! What holds for every algorithm, correction and selection.

use loss::{Correction, Select};

use super::*;

/// Algorithms whose stop-gradient factors are made from π itself, so that a difference of losses sees them move: the
/// clipped ratio of one, the ratio's cap of the other. Their derivatives by everything else are compared.
const MOVING_FACTORS: [&str; 2] = ["cispo", "sdpo"];

/// Every algorithm as it is, and with everything that can be added to it.
fn everything() -> Vec<(String, Settings)> {
    let mut all: Vec<(String, Settings)> = Settings::NAMES.iter().map(|n| ((*n).to_owned(), set(n, &[]))).collect();
    let mut add = |name: &str, changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|c| (*c).to_owned()).collect();
        // What makes no sense together is refused by name, which is tested where it is refused.
        if let Ok(settings) = settings(name, &changes) {
            all.push((format!("{name} {changes:?}"), settings));
        }
    };
    for name in Settings::NAMES {
        for reduction in ["token_mean", "sequence_mean", "sequence_sum", "fixed_horizon", "sum"] {
            let horizon = if reduction == "fixed_horizon" { vec!["horizon=7"] } else { vec![] };
            add(name, &[vec![&*format!("reduction={reduction}")], horizon].concat());
        }
        for estimator in ["k1", "k2", "k3"] {
            for place in ["loss", "reward"] {
                let estimator = format!("kl.estimator={estimator}");
                add(name, &["kl.coefficient=0.125", &estimator, &format!("kl.place={place}")]);
            }
        }
        add(name, &["entropy.coefficient=0.25"]);
        add(name, &["minibatch_groups=1"]);
        for rule in Correction::NAMES {
            add(name, &[&format!("correction.rule={rule}")]);
        }
        for rule in Select::NAMES {
            add(name, &[&format!("select.rule={rule}")]);
        }
    }
    add("sdpo", &["top_k=0"]);
    add("sdpo", &["alpha=0"]);
    add("sdpo", &["alpha=1"]);
    add("grpo", &["dual_clip=3"]);
    assert!(all.len() > 150, "{}", all.len());
    all
}

#[test]
fn every_algorithm_teaches_something_finite() {
    for (name, settings) in everything() {
        let found = ask(&rich(), &settings);
        assert_eq!(found.episodes.len(), REWARDS.len());
        assert!(found.summary.loss.is_finite(), "{name}");
        let mut pushes = 0.0;
        for episode in &found.episodes {
            for t in 0..5 {
                let is_sampled = rich()[episode.line - 1]["sampled"][t] == 1;
                assert_eq!(episode.dloss_dlogp[t].is_some(), is_sampled, "{name}");
                let all = [episode.loss[t], episode.correction[t], episode.advantage[t].map(f64::from)];
                assert!(all.iter().flatten().all(|v| v.is_finite()), "{name}: {episode:?}");
                assert!(is_sampled || all == [None; 3], "{name}: {episode:?}");
            }
            pushes += derivatives(episode).iter().flat_map(|(_, list)| list).map(|d| d.abs()).sum::<f64>();
        }
        // A rule may leave nothing: some of these bands are narrow, and these lines are far off-policy.
        let may_be_silent = name.contains("correction");
        assert!(pushes.is_finite() && (may_be_silent || pushes > 0.0), "{name}: {pushes}");
    }
}

/// The loss of each line's own tokens sums up to the summary's, wherever tokens are simply added.
#[test]
fn sums_of_losses_are_the_loss_where_tokens_are_added() {
    for name in Settings::NAMES {
        let Ok(settings) = settings(name, &["reduction=sum".to_owned()]) else { continue };
        let found = ask(&rich(), &settings);
        let sum: f64 = found.episodes.iter().filter_map(|e| e.loss_sequence).sum();
        assert!((sum - found.summary.loss).abs() < 1e-9, "{name}: {sum}, {}", found.summary.loss);
    }
}

#[test]
fn micro_batches_change_no_digit() {
    let input = Input::read(&text(&rich())).unwrap();
    for (name, settings) in everything() {
        let whole = serde_json::to_string(&signals(&input, &settings, 1).unwrap().summary).unwrap();
        let one = signals(&input, &settings, 1).unwrap();
        for micro_batches in [2, 3, 100] {
            let cut = signals(&input, &settings, micro_batches).unwrap();
            assert_eq!(cut, one, "{name}");
            assert_eq!(serde_json::to_string(&cut.summary).unwrap(), whole);
        }
    }
}

#[test]
fn what_stands_at_tokens_that_were_not_sampled_is_not_read() {
    let mut lines = rich();
    for line in &mut lines {
        let sampled = line["sampled"].clone();
        let top = line["topk"].as_object_mut().unwrap();
        let wide = [json!([]), json!([5.0, 5.0, 5.0])];
        for (i, list) in top.iter_mut().filter(|(k, _)| *k != "ids").map(|(_, v)| v).enumerate() {
            for t in (0..5).filter(|t| sampled[*t] == 0) {
                list[t] = wide[i % 2].clone();
            }
        }
        let lists: Vec<String> = line.keys().filter(|k| k.starts_with("logp") || *k == "value_new").cloned().collect();
        for (i, key) in lists.iter().enumerate() {
            for t in (0..5).filter(|t| sampled[*t] == 0) {
                line[key][t] = json!(([1e30, -7.5, 0.0][i % 3]));
            }
        }
        for key in ["value", "entropy"] {
            (0..5).filter(|t| sampled[*t] == 0).for_each(|t| line[key][t] = json!(-3.0));
        }
        for key in ["turn", "version"] {
            (0..5).filter(|t| sampled[*t] == 0).for_each(|t| line[key][t] = json!(99));
        }
    }
    for (name, settings) in everything() {
        assert_eq!(ask(&lines, &settings), ask(&rich(), &settings), "{name}");
    }
}

#[test]
fn the_order_of_lines_changes_nothing_but_rounding() {
    let order = [5, 2, 0, 4, 1, 3];
    let shuffled: Vec<Fields> = order.iter().map(|i| rich()[*i].clone()).collect();
    // A choice by chance is seeded by which attempt is which.
    for (name, settings) in everything().into_iter().filter(|(name, _)| !name.contains("clip_cov")) {
        let (there, here) = (ask(&shuffled, &settings), ask(&rich(), &settings));
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
        assert!(near(there.summary.loss, here.summary.loss), "{name}");
        for (at, i) in order.iter().enumerate() {
            let (a, b) = (&there.episodes[at], &here.episodes[*i]);
            let pairs = derivatives(a).into_iter().zip(derivatives(b));
            for ((what, a), (_, b)) in pairs {
                assert_eq!(a.len(), b.len(), "{name}");
                assert!(a.iter().zip(&b).all(|(a, b)| near(*a, *b)), "{name} {what}: {a:?} {b:?}");
            }
        }
    }
}

#[test]
fn a_failed_episode_beside_the_others_changes_none_of_them() {
    let mut failed = rich()[1].clone();
    ["reward", "pair", "turn_rewards"].iter().for_each(|key| drop(failed.remove(*key)));
    failed.insert(
        "outcome".to_owned(),
        json!({"kind": "failed", "stage": "tool", "cause": {"class": "c", "detail": "d"}}),
    );
    let lines = [rich(), vec![failed]].concat();
    for (name, settings) in everything().into_iter().filter(|(name, _)| !name.contains("clip_cov")) {
        let (with, without) = (ask(&lines, &settings), ask(&rich(), &settings));
        assert_eq!(with.episodes[..6], without.episodes[..], "{name}");
        assert_eq!(
            (with.summary.loss, with.summary.metrics),
            (without.summary.loss, without.summary.metrics),
            "{name}"
        );
        let last = &with.episodes[6];
        assert_eq!(last.dropped.as_deref(), Some("failed with `c`"), "{name}");
        assert!(last.advantage.iter().all(Option::is_none) && last.dloss_dlogp.iter().flatten().all(|d| *d == 0.0));
    }
}

/// Small steps in the numbers that the derivative is taken by, against the exact derivative: for each algorithm in each
/// number alone, for everything in all of them at once.
#[test]
fn derivatives_are_those_of_the_summary_loss() {
    const STEP: f64 = 1.0 / 1024.0;
    let mut n = 0;
    for (name, settings) in everything() {
        let moving = MOVING_FACTORS.iter().any(|m| name.starts_with(m)) || has_moving_correction(&settings);
        let found = ask(&rich(), &settings);
        for what in ["logp", "value_new", "entropy", "topk"] {
            let exact: Vec<Vec<f64>> = found.episodes.iter().map(|e| by(e, what)).collect();
            if exact.iter().all(Vec::is_empty) || (what == "logp" && moving) {
                continue;
            }
            let places: Vec<(usize, usize)> = (0..6).flat_map(|at| (0..5).map(move |t| (at, t))).collect();
            let places = places.into_iter().filter(|(at, t)| rich()[*at]["sampled"][*t] == 1);
            let alone = Settings::NAMES.contains(&&*name);
            let directions: Vec<Vec<(usize, usize, f64)>> = match alone {
                true => places.map(|(at, t)| vec![(at, t, 1.0)]).collect(),
                false => vec![places.enumerate().map(|(i, (at, t))| (at, t, [1.0, -1.0, 2.0][i % 3])).collect()],
            };
            for direction in directions {
                let loss_at = |step: f64| {
                    let mut lines = rich();
                    for (at, t, share) in &direction {
                        let number = number(&mut lines[*at], what, *t);
                        *number = json!(number.as_f64().unwrap() + share * step);
                    }
                    ask(&lines, &settings).summary.loss
                };
                let want = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
                let got: f64 = direction.iter().map(|(at, t, share)| share * exact[*at].get(*t).unwrap_or(&0.0)).sum();
                assert!((got - want).abs() <= 1e-5 + 2e-5 * want.abs(), "{name} {what} {direction:?}: {got}, {want}");
                n += 1;
            }
        }
    }
    assert!(n > 500, "{n}");
}

/// An episode's exact derivatives by one kind of number, an entry a token; of other tokens that by the first.
fn by(episode: &EpisodeSignals, what: &str) -> Vec<f64> {
    let first = |top: &Option<Vec<f32>>| f64::from(top.as_ref().map_or(0.0, |top| top[0]));
    if what == "topk" {
        return episode.dloss_dtop.iter().flatten().map(first).collect();
    }
    derivatives(episode).into_iter().find(|(name, _)| *name == what).map(|(_, list)| list).unwrap_or_default()
}

fn number<'a>(line: &'a mut Fields, what: &str, t: usize) -> &'a mut Value {
    if what == "topk" { &mut line["topk"]["logp"][t][0] } else { &mut line[what][t] }
}

/// Corrections whose weight is made from π, where most are made from π_old.
fn has_moving_correction(settings: &Settings) -> bool {
    let table = serde_json::to_value(settings).unwrap();
    let rule = table["correction"]["rule"].as_str().unwrap_or("none");
    rule == "decoupled"
}
