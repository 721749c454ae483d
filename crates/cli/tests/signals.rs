//! `surefoot signals` as it is used: closed forms of every algorithm, a real run's episodes, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "a test file needs some of it")]
mod program;
#[path = "../../run/tests/tiny/mod.rs"]
#[allow(dead_code, reason = "a tiny model is all that is taken from there")]
mod tiny;

use program::Desk;
use serde_json::{Value, json};

/// Two attempts at a task: a good one of two tokens behind a prompt, and a bad one of a single token.
fn lines() -> [Value; 2] {
    [
        json!({
            "group": 1, "reward": 1, "sampled": [0, 1, 1], "logp_sampler": [null, -1.0, -0.5],
            "logp": [null, -0.875, -0.5], "logp_ref": [null, -1.125, -0.75], "logp_teacher": [null, -0.75, -0.5],
            "value": [null, 0.5, 0.25], "topk": {"logp": [null, [-0.5], [-0.5]], "logp_teacher": [null, [-1.0], [-1.0]]},
        }),
        json!({
            "group": 1, "reward": 0, "sampled": [0, 1], "logp_sampler": [null, -0.25], "logp": [null, -0.375],
            "logp_ref": [null, -0.25], "logp_teacher": [null, -0.5], "value": [null, 0.5],
            "topk": {"logp": [null, [-0.5]], "logp_teacher": [null, [-1.0]]},
        }),
    ]
}

/// What is printed, one value a line.
fn ask(desk: &Desk, name: &str, changes: &[&str], lines: &[Value]) -> Vec<Value> {
    let mut words = vec!["signals", "--json", "--algorithm", name];
    words.extend(changes.iter().flat_map(|change| ["--set", change]));
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let ran = desk.run_with(&words, input.as_bytes(), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name} {changes:?}");
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The summary's loss, then its derivatives by the tokens' log-probabilities: two of the good attempt, one of the bad one.
fn check(name: &str, changes: &[&str], want: [f64; 4]) {
    let found = ask(&Desk::new(), name, changes, &lines());
    assert_eq!(found.len(), 3, "two episodes and a summary");
    let number = |value: &Value| value.as_f64().unwrap();
    let d = |line: usize, t: usize| number(&found[line]["dloss_dlogp"][t]);
    let got = [number(&found[2]["loss"]), d(0, 1), d(0, 2), d(1, 1)];
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-6 * (1.0 + want.abs()), "{name} {changes:?}: {got:?}, {want:?}");
    }
    assert!(found[0]["dloss_dlogp"][0].is_null() && found[0]["advantage"][0].is_null());
}

/// The advantage of two rewards of 1 and 0 in sample spreads.
const A: f64 = std::f64::consts::FRAC_1_SQRT_2;

/// π/π_old of the good attempt's first token; that of its second is 1, that of the bad one's 1/R.
fn r() -> f64 {
    f64::exp(0.125)
}

#[test]
fn ratio_methods_are_their_closed_forms() {
    let (up, down) = (r(), 1.0 / r());
    let plain = |a: f64, b: f64| [-a * up - a + b * down, -a * up, -a, b * down];
    let divided = |all: [f64; 4], by: [f64; 4]| [all[0] / by[0], all[1] / by[1], all[2] / by[2], all[3] / by[3]];
    check("grpo", &["std_eps=0", "reduction=sum"], plain(A, A));
    check("grpo", &["std_eps=0", "reduction=token_mean"], divided(plain(A, A), [3.0; 4]));
    check("grpo", &["std_eps=0", "reduction=sequence_sum"], divided(plain(A, A), [2.0; 4]));
    check("grpo", &["std_eps=0", "reduction=fixed_horizon", "horizon=5"], divided(plain(A, A), [10.0; 4]));
    let mean = [(-A * up - A) / 4.0 + A * down / 2.0, -A * up / 4.0, -A / 4.0, A * down / 2.0];
    check("grpo", &["std_eps=0", "reduction=sequence_mean"], mean);
    check("grpo", &["advantage_std=population", "std_eps=0", "reduction=sum"], plain(1.0, 1.0));
    check("grpo", &["advantage_std=none", "reduction=sum"], plain(0.5, 0.5));
    check("dr_grpo", &["horizon=5"], divided(plain(0.5, 0.5), [10.0; 4]));
    check("max_rl", &["reduction=sum"], plain(1.0, 1.0));
    check("dapo", &["std_eps=0", "reduction=token_mean"], divided(plain(A, A), [3.0; 4]));
    // Beyond a bound, and on the far side of it for a good token, nothing is left to learn.
    check("grpo", &["std_eps=0", "reduction=sum", "ratio_max=1.1"], [-1.1 * A - A + A * down, 0.0, -A, A * down]);
    check("grpo", &["std_eps=0", "reduction=sum", "ratio_min=0.9"], [-A * up - A + 0.9 * A, -A * up, -A, 0.0]);
    // Returns 1, 1 and 0, whitened over the three tokens.
    let (good, bad) = (0.5 / A, 2.0_f64.sqrt());
    check("reinforce_pp", &["gamma=1", "reduction=sum"], plain(good, bad));
    let all = f64::exp(0.0625);
    let gspo = [-2.0 * all * A + A * down, -all * A, -all * A, A * down];
    check("gspo", &["std_eps=0", "reduction=sum", "ratio_min=0.5", "ratio_max=2"], gspo);
    let bounds = ["std_eps=0", "reduction=sum", "ratio_min=0.9997", "ratio_max=1.0004"];
    check("gspo", &bounds, [-2.0 * 1.0004 * A + 0.9997 * A, 0.0, 0.0, 0.0]);
    let cispo = [-up * A * -0.875 - A * -0.5 + down * A * -0.375, -up * A, -A, down * A];
    check("cispo", &["std_eps=0", "reduction=sum"], cispo);
    let sigma = |x: f64| 1.0 / (1.0 + f64::exp(-x));
    let (s, t) = (sigma(up - 1.0), sigma(1.05 * (down - 1.0)));
    let slope = [-A * 4.0 * s * (1.0 - s) * up, -A, A * 4.0 * t * (1.0 - t) * down];
    let loss = -A * 4.0 * s - A * 2.0 + A * 4.0 / 1.05 * t;
    check(
        "sapo",
        &["std_eps=0", "reduction=sum", "tau_positive=1", "tau_negative=1.05"],
        [loss, slope[0], slope[1], slope[2]],
    );
}

#[test]
fn methods_on_log_probabilities_are_their_closed_forms() {
    check("reinforce", &[], [(0.875 + 0.5) / 2.0, -0.5, -0.5, 0.0]);
    check("reinforce", &["baseline=batch_mean", "reduction=sum"], [0.5 * (0.875 + 0.5 - 0.375), -0.5, -0.5, 0.5]);
    check("rloo", &["reduction=sum"], [0.875 + 0.5 - 0.375, -1.0, -1.0, 1.0]);
    check("sft", &["reduction=sum"], [0.875 + 0.5 + 0.375, -1.0, -1.0, -1.0]);
    check("raft", &["reduction=token_mean"], [(0.875 + 0.5) / 2.0, -0.5, -0.5, 0.0]);
    let (up, down) = (r(), 1.0 / r());
    // Its advantages are 0.25, 0 and −0.25: how much likelier the teacher finds each token than π_old.
    check("distill", &["reduction=sum"], [-0.25 * up + 0.25 * down, -0.25 * up, 0.0, 0.25 * down]);
    let pull = |moved: f64| 0.5 * 0.05 * moved * moved;
    let dro = [0.5 * (0.875 + 0.5 - 0.375) + 2.0 * pull(0.125), -0.5 + 0.05 * 0.125, -0.5, 0.5 - 0.05 * 0.125];
    check("dro", &["beta=0.05"], dro);
    let value = ((f64::exp(1.0) + 1.0) / 2.0).ln();
    let (good, bad) = (0.5 * 0.125 - (1.0 - value), 0.5 * -0.125 + value);
    check("oapl", &["beta1=1", "beta2=0.5"], [(good * good + bad * bad) / 2.0, 0.5 * good, 0.5 * good, 0.5 * bad]);
    // Margins to the reference: 0.25 + 0.25 of the better one, −0.125 of the other.
    let z: f64 = 0.1 * (0.5 + 0.125);
    let share = 0.1 / (1.0 + z.exp());
    check("dpo", &["beta=0.1"], [(1.0 + (-z).exp()).ln(), -share, -share, share]);
}

#[test]
fn methods_with_other_derivatives_are_their_closed_forms() {
    let desk = Desk::new();
    let near = |got: &Value, want: f64| {
        let got = got.as_f64().unwrap();
        assert!((got - want).abs() <= 1e-6 * (1.0 + want.abs()), "{got}, {want}");
    };
    // δ = 0.25 − 0.5, 1 − 0.25 and 0 − 0.5; the value loss is ½·½·A² a token since R − V = A.
    let (a, b, c): (f64, f64, f64) = (-0.25 + 0.95 * 0.75, 0.75, -0.5);
    let found = ask(&desk, "ppo", &["whiten=false", "lambda=0.95", "value_coefficient=0.5", "reduction=sum"], &lines());
    near(&found[2]["loss"], -r() * a - b - c / r() + 0.25 * (a * a + b * b + c * c));
    for (line, t, advantage) in [(0, 1, a), (0, 2, b), (1, 1, c)] {
        near(&found[line]["advantage"][t], advantage);
        near(&found[line]["dloss_dvalue"][t], -0.5 * advantage);
    }
    near(&found[0]["dloss_dlogp"][1], -r() * a);
    near(&found[0]["returns"][1], a + 0.5);

    let found = ask(&desk, "reward_model", &[], &lines());
    let share = 1.0 / (1.0 + f64::exp(-0.25));
    near(&found[2]["loss"], (1.0 + f64::exp(0.25)).ln());
    assert_eq!(found[0]["dloss_dvalue"][1], 0.0, "only the last token's value is a score");
    near(&found[0]["dloss_dvalue"][2], -share);
    near(&found[1]["dloss_dvalue"][1], share);

    // Only the bad attempt has another one that succeeded to learn from: KL(student‖teacher) over one token and the rest.
    let found = ask(&desk, "sdpo", &["alpha=1", "reduction=sum"], &lines());
    let (q, t) = (f64::exp(-0.5), f64::exp(-1.0));
    let weight = 1.0 / r();
    near(&found[2]["loss"], weight * (q * (q / t).ln() + (1.0 - q) * ((1.0 - q) / (1.0 - t)).ln()));
    near(&found[1]["dloss_dtop"][1][0], weight * q * ((q / t).ln() - ((1.0 - q) / (1.0 - t)).ln()));
    assert_eq!((&found[0]["weight"][1], &found[1]["weight"][1]), (&json!(0.0), &json!(1.0)));
}

#[test]
fn a_kl_and_a_correction_are_there_when_they_are_set() {
    let base = ["std_eps=0", "reduction=sum"];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    let (up, down) = (r(), 1.0 / r());
    // k2 of 0.25, 0.25 and −0.125, a tenth of it.
    let k2 = |k: f64| 0.1 * 0.5 * k * k;
    let loss = -A * up - A + A * down + 2.0 * k2(0.25) + k2(0.125);
    let want = [loss, -A * up + 0.025, -A + 0.025, A * down - 0.0125];
    check("grpo", &with(&["kl.coefficient=0.1", "kl.estimator=k2"]), want);
    let k3 = |k: f64| 0.1 * ((-k).exp() - 1.0 + k);
    let want = [-A * up - A + A * down + 2.0 * k3(0.25) + k3(-0.125), want[1], want[2], want[3]];
    let slope = |k: f64| 0.1 * (1.0 - (-k).exp());
    let want = [want[0], -A * up + slope(0.25), -A + slope(0.25), A * down + slope(-0.125)];
    check("grpo", &with(&["kl.coefficient=0.1", "kl.estimator=k3"]), want);
    // Off-policy: μ, π_old and π all differ, the weight is π_old/μ capped at 1.1, the ratio π/π_old.
    let mut off = lines();
    off[0]["logp_old"] = json!([null, -0.75, -0.5]);
    off[1]["logp_old"] = json!([null, -0.3125]);
    let found = ask(&Desk::new(), "grpo", &with(&["correction.rule=token_tis", "correction.cap=1.1"]), &off);
    let want = [(0, 1, -A * 1.1 * f64::exp(-0.125)), (0, 2, -A), (1, 1, A * f64::exp(-0.125))];
    for (line, t, want) in want {
        let got = found[line]["dloss_dlogp"][t].as_f64().unwrap();
        assert!((got - want).abs() < 1e-6, "{got}, {want}");
    }
    assert_eq!(found[0]["correction"], json!([null, 1.1, 1.0]));
}

/// A run's own files, as they are, give what the run itself computed: to the bit, since nothing had moved yet.
#[test]
fn a_real_runs_episodes_give_the_runs_own_numbers() {
    let place = tiny::Place::new();
    let text = RUN.replace("MODEL", place.model().to_str().unwrap());
    let file = place.path("run.toml");
    std::fs::write(&file, text).unwrap();
    let desk = Desk::new();
    let folder = place.path("run").display().to_string();
    let ran = desk.run(&["train", file.to_str().unwrap(), "--out", &folder, "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let read = |name: &str| std::fs::read_to_string(place.path("run").join(name)).unwrap();
    let values = |text: &str| -> Vec<Value> { text.lines().map(|l| serde_json::from_str(l).unwrap()).collect() };
    let episodes = read("episodes/step-000001.jsonl");
    let ran = desk.run_with(&["signals", "--algorithm", "grpo", "--json"], episodes.as_bytes(), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let mut found = values(&ran.out);
    let summary = found.pop().unwrap();
    let recorded = values(&read("signals/step-000001.jsonl"));
    assert_eq!(found.len(), 16, "4 tasks with 4 attempts each");
    assert_eq!(recorded.len(), found.len());
    for (found, recorded) in found.iter().zip(&recorded) {
        assert_eq!(found["advantage"], recorded["values"]["advantage"][0]);
        assert_eq!(found["task"], recorded["task"]);
    }
    let metrics = &values(&read("metrics.jsonl"))[0];
    assert_eq!(summary["loss"], metrics["loss"]);
    assert_eq!(summary["metrics"]["dlogp_norm"], metrics["dlogp_norm"]);
    assert_ne!(metrics["dlogp_norm"], 0.0);

    // Beside a typed line, whose group is another one whatever it is called.
    let mixed = format!("{}{}\n", episodes, lines()[0]);
    let ran = desk.run_with(&["signals", "--algorithm", "grpo", "--json"], mixed.as_bytes(), &[]);
    let more = values(&ran.out);
    assert_eq!(more[..16], found[..]);
    assert_eq!(more[16]["dropped"], "needed at least 2 graded episodes, got 1 of 1");
    assert_eq!((&more[17]["n_groups"], &more[17]["loss"]), (&json!(5), &summary["loss"]));

    // What the record has cannot be said again; what it lacks can.
    let line = episodes.lines().next().unwrap();
    let with = |field: &str| format!("{},{field}}}\n", &line[..line.len() - 1]);
    let ran = desk.run_with(&["signals", "--algorithm", "reinforce"], with("\"reward\":1").as_bytes(), &[]);
    assert_eq!(ran.err.lines().next(), Some("error: `reward` stands beside `episode`, which has its own"));
    let record: Value = serde_json::from_str(line).unwrap();
    let n = record["episode"]["sequences"][0]["tokens"].as_array().unwrap().len();
    let entropy = with(&format!("\"entropy\":{}", json!(vec![0.5; n])));
    let words = ["signals", "--algorithm", "reinforce", "--set", "entropy.coefficient=0.25", "--json"];
    let ran = desk.run_with(&words, entropy.as_bytes(), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(values(&ran.out)[1]["metrics"]["entropy"], 0.5);
}

const RUN: &str = r#"
model = "MODEL"
seed = 3
steps = 1

[train]
kind = "lora"
rank = 4
alpha = 8
targets = ["all"]

[algorithm]
kind = "grpo"

[batch]
tasks = 4
group_size = 4

[sampling]
max_tokens = 10

[eval]
tasks = 0

[control]
coin_flips = true

[[env]]
kind = "sums"
n_train = 40
n_held_out = 20
"#;

/// The page's example: its lines, its command, its output.
#[test]
fn the_documented_example_is_what_is_printed() {
    let docs = include_str!("../../../docs/signals.md");
    let (_, example) = docs.split_once("## An example").unwrap();
    let block = |kind: &str| example.split_once(&format!("```{kind}\n")).unwrap().1.split_once("```").unwrap().0;
    let command = example.split('`').find(|text| text.starts_with("surefoot signals ")).unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let ran = Desk::new().run_with(&words, block("json").as_bytes(), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out, block("text"));
}

#[test]
fn tables_cut_long_episodes_and_say_what_was_dropped() {
    let n = 100;
    let of = |reward: f64| {
        let logp: Vec<f64> = (0..n).map(|t| -1.0 - f64::from(t) / 128.0).collect();
        json!({"task": "long", "reward": reward, "sampled": vec![1; 100], "logp_sampler": vec![-1.5; 100], "logp": logp})
    };
    let failed = json!({
        "task": "long", "sampled": [1], "logp_sampler": [-1.0],
        "outcome": {"kind": "failed", "stage": "tool", "cause": {"class": "deadline", "detail": "took 30 s"}},
    });
    let input: String = [of(1.0), of(0.0), failed].iter().map(|line| format!("{line}\n")).collect();
    let ran = Desk::new().run_with(&["signals", "--algorithm", "grpo"], input.as_bytes(), &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("line 1, task long, reward 1, loss "), "{}", ran.out);
    assert!(ran.out.contains("more rows; --json has all\n"), "{}", ran.out);
    assert!(ran.out.contains("\nline 3, task long, not graded: failed with `deadline`\n"), "{}", ran.out);
    assert!(ran.out.ends_with("\nleft out: line 3: failed with `deadline`\n"), "{}", ran.out);
    assert!(ran.out.lines().count() < 150);
}

#[test]
fn what_cannot_be_is_one_message_and_exit_code_2() {
    let desk = Desk::new();
    let check = |words: &[&str], input: &str, want: &str| {
        let ran = desk.run_with(&[&["signals"], words].concat(), input.as_bytes(), &[]);
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (2, "", want), "{words:?}");
    };
    let [good, bad] = lines();
    let two = format!("{good}\n{bad}\n");
    let explained = "hint: `docs/signals.md` explains every field\n";
    check(
        &["--algorithm", "grpo", "--set", "kl.coefficient=0.1"],
        &two.replace("logp_ref", "entropy").replace("-0.25],\"logp_t", "0.25],\"logp_t"),
        &format!(
            "error: `entropy` is -1.125 at token 1, needed a finite number at least 0\n  where: standard input:1\n{explained}"
        ),
    );
    let mut lacking = bad.clone();
    lacking.as_object_mut().unwrap().remove("logp_ref");
    check(
        &["--algorithm", "grpo", "--set", "kl.coefficient=0.1"],
        &format!("{good}\n\n{lacking}\n"),
        &format!("error: `grpo` needs `logp_ref`, which line 3 does not have\n  where: standard input:3\n{explained}"),
    );
    check(
        &["--algorithm", "sapo"],
        &format!("{good}\n{{\"reward\":NaN}}\n"),
        &format!("error: expected value at column 11\n  where: standard input:2\n{explained}"),
    );
    check(&["--algorithm", "grpo"], "\n", &format!("error: needed at least 1 line of JSON, got none\n{explained}"));
    check(
        &["--algorithm", "grpo", "--set", "std_eps=-1"],
        &two,
        "error: `std_eps` is -1, needed a finite number at least 0\nhint: `docs/algorithms` has a page for each algorithm\n",
    );
    let ran = desk.run_with(&["signals", "--algorithm", "grpo", "--json"], b"{}", &[]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((&error["where"], &error["code"]), (&json!("standard input:1"), &json!(2)));
}
