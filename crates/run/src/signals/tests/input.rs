//! Lines: what is read, what is refused, and that nothing that is typed can do worse.

use super::*;
use crate::settings::broken;

fn check(line: &str, want: &str) {
    let text = format!("\n{line}\n");
    let error = Input::read(text.as_bytes()).map(drop).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.line()), (want, Some(2)), "{line}");
}

#[test]
fn a_line_that_cannot_be_is_refused_with_its_number() {
    check("[]", "needed a JSON object");
    check("{", "EOF while parsing an object at column 1");
    check(r#"{"reward":NaN}"#, "expected value at column 11");
    check(r#"{"reward":1e999}"#, "number out of range at column 15");
    check(r#"{"reward":1,"reward":1}"#, "duplicate field `reward` at column 20");
    check("{}", "needed `sampled` or `logp_sampler`, got neither");
    check(r#"{"sampled":[0,2]}"#, "`sampled` is 2 at token 1, needed 0 or 1");
    check(r#"{"sampled":[0,1],"logp":[null]}"#, "`logp` has 1 entries, needed 2, one a token");
    check(r#"{"sampled":[0],"anchor":[]}"#, "`anchor` has 0 entries, needed 1, one a token");
    check(r#"{"sampled":[0,1],"logp":[null,null]}"#, "`logp` is null at token 1, which was sampled");
    check(r#"{"sampled":[1],"logp_ref":[0.5]}"#, "`logp_ref` is 0.5 at token 0, needed a finite number at most 0");
    check(r#"{"sampled":[1],"entropy":[-1]}"#, "`entropy` is -1 at token 0, needed a finite number at least 0");
    check(r#"{"sampled":[1],"value":[1e300]}"#, "number out of range at column 29");
    check(r#"{"sampled":[1,0,1],"turn":[1,0,0]}"#, "`turn` is 0 at token 2 after 1, needed turns in order");
    check(r#"{"sampled":[1,0,1],"turn_rewards":[1]}"#, "`turn_rewards` has 1 entries, needed 2, one a sampled turn");
    check(
        r#"{"sampled":[1],"reward":1,"outcome":{"kind":"cancelled"}}"#,
        "needed either `reward` or `outcome`, got both",
    );
    check(
        r#"{"sampled":[1],"outcome":{"kind":"good"}}"#,
        "unknown variant `good`, expected one of `graded`, `failed`, `cancelled` at column 39",
    );
    check(
        r#"{"sampled":[1],"outcome":{"kind":"cancelled","reward":1}}"#,
        "unknown field `reward`, there are no fields at column 57",
    );
    check(
        r#"{"sampled":[1],"outcome":"graded"}"#,
        r#"invalid type: string "graded", expected an outcome, an object with `kind` at column 33"#,
    );
    check(r#"{"sampled":[1],"topk":{"logp":[[]]}}"#, "`topk.logp` has 0 entries at token 0, needed at least 1");
    check(
        r#"{"sampled":[1,1],"topk":{"logp":[[-1,-1],[-1]]}}"#,
        "`topk.logp` has 1 entries at token 1, needed 2, as before",
    );
    check(
        r#"{"sampled":[1],"topk":{"logp":[[0,0]]}}"#,
        "`topk.logp` has probabilities that add up to 2 at token 0, needed at most 1",
    );
    check(r#"{"sampled":[1],"step":1}"#, "`step` belongs to a run's own record, which has `episode`");
}

#[test]
fn an_unknown_field_is_refused_with_the_known_ones() {
    let error = Input::read(br#"{"sampled":[1],"rewards":1}"#).unwrap_err().to_string();
    assert!(error.starts_with("unknown field `rewards`, expected one of `run`, "), "{error}");
    // The documentation has a row for each of them.
    let docs = include_str!("../../../../../docs/signals.md");
    for field in error.split('`').skip(3).step_by(2) {
        assert!(
            docs.contains(&format!("| `{field}")) || docs.contains(&format!("`, `{field}`")),
            "`{field}` is not explained"
        );
    }
}

#[test]
fn lines_that_contradict_each_other_are_refused() {
    let of = |text: &str| Input::read(text.as_bytes()).unwrap_err();
    let error = of("{\"group\":1,\"task\":\"a\",\"sampled\":[1]}\n{\"group\":1,\"task\":\"b\",\"sampled\":[1]}");
    assert_eq!(error.to_string(), "task `b` stands in the group of line 1, which is of task `a`");
    let side = |side: &str, reward: f64| format!("{{\"pair\":\"{side}\",\"reward\":{reward},\"sampled\":[1]}}\n");
    let error = of(&(side("rejected", 0.5) + &side("chosen", 0.5)));
    let want = "the `chosen` episode has reward 0.5, needed more than the 0.5 of the `rejected` one in line 1";
    assert_eq!((error.to_string().as_str(), error.line()), (want, Some(2)));
    assert_eq!(of(" \n\n").to_string(), "needed at least 1 line of JSON, got none");
}

/// Each algorithm, with each field that it needs left out of one line.
#[test]
fn a_field_that_is_needed_and_missing_is_named_with_line_and_algorithm() {
    let mut needed = Vec::new();
    let given: Vec<String> = rich()[1].keys().filter(|key| *key != "sampled").cloned().collect();
    for name in Settings::NAMES {
        let whole = ask(&rich(), &set(name, &[]));
        for field in &given {
            let mut lines = rich();
            lines[1].remove(field);
            if field == "reward" {
                ["pair", "turn_rewards"].iter().for_each(|key| drop(lines[1].remove(*key)));
            }
            match signals(&Input::read(&text(&lines)).unwrap(), &set(name, &[]), 1) {
                Ok(found) => assert!(found.summary.loss.is_finite() && !whole.episodes.is_empty()),
                Err(error) => {
                    let want = |field: &str| format!("`{name}` needs `{field}`, which line 2 does not have");
                    let parts = [field.clone(), format!("{field}.logp")];
                    assert!(parts.iter().any(|f| error.to_string() == want(f)), "{name} without {field}: {error}");
                    assert_eq!(error.line(), Some(2));
                    needed.push(format!("{name} {field}"));
                }
            }
        }
    }
    for want in ["grpo reward", "dpo logp_ref", "distill logp_teacher", "ppo value", "sdpo topk", "oapl logp_sampler"] {
        assert!(needed.iter().any(|n| n == want), "{want} in {needed:?}");
    }
    assert!(
        !needed.iter().any(|n| ["sft reward", "distill reward", "reinforce logp_sampler"].contains(&&**n)),
        "{needed:?}"
    );
}

#[test]
fn what_is_absent_stands_for_what_is_there() {
    let mut bare = rich();
    bare.iter_mut().for_each(|line| ["logp", "logp_old"].iter().for_each(|key| drop(line.remove(*key))));
    let mut same = bare.clone();
    for line in &mut same {
        let sampler = line["logp_sampler"].clone();
        ["logp", "logp_old"].iter().for_each(|key| drop(line.insert((*key).to_owned(), sampler.clone())));
    }
    for name in Settings::NAMES {
        let (bare, same) = (ask(&bare, &set(name, &[])), ask(&same, &set(name, &[])));
        assert_eq!(bare, same, "{name}");
        assert!(bare.summary.metrics.ratio.is_none_or(|ratio| ratio == 1.0), "{name}");
    }
}

/// Ratios are to `logp_old`, corrections from it to `logp_sampler`.
#[test]
fn the_three_policies_are_told_apart() {
    let line = |reward: f64| {
        format!(
            "{{\"reward\":{reward},\"sampled\":[1],\"logp_sampler\":[-1.0],\"logp_old\":[-0.75],\"logp\":[-0.625]}}\n"
        )
    };
    let input = Input::read((line(1.0) + &line(0.0)).as_bytes()).unwrap();
    let found = signals(&input, &set("grpo", &["correction.rule=token_tis", "advantage_std=none"]), 1).unwrap();
    let (ratio, weight) = (f64::exp(0.125), f64::exp(0.25));
    let loss = found.episodes[0].loss[0].unwrap();
    assert!((found.episodes[0].correction[0].unwrap() - weight).abs() < 1e-12);
    assert!((loss + 0.5 * ratio * weight).abs() < 1e-12, "{loss}");
    assert!((found.summary.metrics.ratio.unwrap() - ratio).abs() < 1e-12);
}

#[test]
fn groups_are_made_by_group_then_task_then_all_together() {
    let of =
        |text: &str| Input::read(text.as_bytes()).unwrap().groups.iter().map(|g| g.episodes.len()).collect::<Vec<_>>();
    let line = |fields: &str| format!("{{{fields}\"sampled\":[1]}}\n");
    assert_eq!(of(&(line("\"group\":1,") + &line("\"group\":\"1\",") + &line("\"group\":2,"))), [2, 1]);
    assert_eq!(of(&(line("\"task\":\"a\",") + &line("\"task\":\"b\",") + &line("\"task\":\"a\","))), [2, 1]);
    assert_eq!(
        of(&(line("\"group\":1,\"task\":\"a\",") + &line("\"group\":2,\"task\":\"a\",") + &line(""))),
        [1, 1, 1]
    );
    assert_eq!(of(&(line("") + &line(""))), [2]);
}

/// A run's own record of two sequences, whose second a newer version went on with, and what stands beside it.
#[test]
fn a_record_of_several_sequences_is_taken_as_it_is() {
    let sequence = |logp: [f64; 2], version: [u32; 2]| {
        json!({
            "tokens": [7, 8, 9], "sampled": [0, 1, 1], "logp": [null, logp[0], logp[1]],
            "logp_t1": [null, logp[0], logp[1]], "version": [null, version[0], version[1]],
            "turns": [{"role": "user", "span": {"start": 0, "end": 1}}, {"role": "assistant", "span": {"start": 1, "end": 3}}],
        })
    };
    let record = |sample: u32, reward: f64| {
        let task = json!({"id": "e/1", "env": "e", "messages": [], "gold": null});
        json!({
            "run": "r", "step": 6, "group": 0, "task": task,
            "episode": {
                "key": {"step": 6, "task": "e/1", "sample": sample},
                "sequences": [sequence([-0.5, -1.0], [1, 1]), sequence([-0.75, -0.25], [1, 2])],
                "messages": [], "outcome": {"kind": "graded", "reward": reward, "parts": []}, "stop": "eos",
            },
            "logp": [null, -0.25, -1.0, null, -0.75, -0.5],
        })
    };
    let text = format!("{}\n{}\n", record(0, 1.0), record(1, 0.0));
    let input = Input::read(text.as_bytes()).unwrap();
    let changes = ["advantage_std=none", "reduction=sum", "correction.rule=decoupled", "ratio_min=0", "ratio_max=9"];
    let found = signals(&input, &set("grpo", &changes), 1).unwrap();
    let first = &found.episodes[0];
    assert_eq!(first.sequence_lengths.as_deref(), Some(&[3, 3][..]));
    // Step 6 begins with version 5: lags of 4 and 3, so that shares of 4/5 and 3/4 of the way from μ to π are its anchor.
    let want = [None, Some(0.8 * 0.25), Some(0.0), None, Some(0.0), Some(0.75 * -0.25)];
    for (got, want) in first.correction.iter().zip(want) {
        assert!(got.is_some() == want.is_some(), "{:?}", first.correction);
        let gap = got.unwrap_or(0.0) - want.map_or(0.0, f64::exp);
        assert!(gap.abs() < 1e-12, "{:?}", first.correction);
    }
    // Weight times ratio is π/μ, whatever the anchor.
    let loss = -0.5 * (f64::exp(0.25) + 1.0 + 1.0 + f64::exp(-0.25));
    assert!((first.loss_sequence.unwrap() - loss).abs() < 1e-12);
    assert_eq!(found.summary.totals[0].n_sequences, 4);
    let without = text.replacen("\"step\":6,", "", 1);
    let error = Input::read(without.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "a line with `episode` needs `run`, `step`, `group` and the whole `task`");
}

#[test]
fn settings_are_checked_and_bare_unless_set() {
    for name in Settings::NAMES {
        let table = serde_json::to_value(set(name, &[])).unwrap();
        let is_off = |value: &Value, off: Value| value.is_null() || *value == off;
        assert!(is_off(&table["kl"]["coefficient"], json!(0.0)), "{name}");
        assert!(is_off(&table["correction"]["rule"], json!("none")), "{name}");
    }
    let refused = |changes: &[&str]| {
        settings("grpo", &changes.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>()).unwrap_err().to_string()
    };
    assert_eq!(refused(&["std_eps"]), "cannot set `std_eps`: needed `key=value`");
    assert_eq!(refused(&["=1"]), "cannot set `=1`: the key is not one");
    assert_eq!(refused(&["std_eps=1\nhorizon=2"]), "cannot set `std_eps=1\nhorizon=2`: the key is not one");
    assert!(refused(&["std_eps=1", "std_eps=2"]).starts_with("cannot set `std_eps=2`: duplicate key"));
    assert!(refused(&["kind=rloo"]).starts_with("cannot set `kind=rloo`: duplicate key"));
    let want = "`epochs` does nothing here, where one pass over given episodes is made: leave it out";
    assert_eq!(refused(&["epochs=2"]), want);
    assert!(refused(&["hello=1"]).starts_with("unknown field `hello`"), "{}", refused(&["hello=1"]));
    assert_eq!(set("grpo", &["correction.rule=token_tis"]), set("grpo", &["correction.rule=\"token_tis\""]));
    assert!(
        settings("grppo", &[]).unwrap_err().to_string().starts_with("no algorithm `grppo`, needed one of `grpo`, ")
    );
}

#[test]
fn broken_lines_never_panic() {
    let whole = text(&rich());
    let mut n_read = 0;
    for (case, bytes) in broken::broken("broken lines", &whole, b"{}[]\":,.0-en", 10_000).enumerate() {
        let Ok(input) = Input::read(&bytes) else { continue };
        n_read += 1;
        let name = Settings::NAMES[case % Settings::NAMES.len()];
        if let Ok(found) = signals(&input, &set(name, &[]), 1 + case % 3) {
            assert!(found.summary.loss.is_finite(), "{name}");
        }
    }
    assert!((100..9_900).contains(&n_read), "{n_read} of 10000 could still be read");
}

#[test]
fn an_episode_that_an_algorithm_refuses_is_blamed_by_its_line() {
    let lines = "{\"reward\":1,\"logp_sampler\":[null,-1]}\n\n{\"reward\":-1,\"logp_sampler\":[null,-1]}\n";
    let error = signals(&Input::read(lines.as_bytes()).unwrap(), &set("max_rl", &[]), 1).unwrap_err();
    assert_eq!(error.line(), Some(3), "{error}");
}

#[test]
fn interpolating_between_versions_needs_to_be_told_them() {
    let line = |rest: &str| format!("{{\"reward\":1,\"logp_sampler\":[null,-1],\"logp\":[null,-2]{rest}}}\n");
    let ask = |text: String| {
        let settings = set("grpo", &["correction.rule=decoupled"]);
        signals(&Input::read(text.as_bytes()).unwrap(), &settings, 1)
    };
    let reward = |text: String| text.replace("\"reward\":1", "\"reward\":0");
    let error = ask(line("") + &reward(line(""))).unwrap_err();
    assert_eq!(error.to_string(), "`grpo` needs `version`, which line 1 does not have");
    let told = |version: u32| line(&format!(",\"version\":[null,{version}]"));
    let found = ask(told(0) + &reward(told(2))).unwrap();
    // Two versions behind, a = 2/3: log π_prox − log μ is −2/3 where log π − log μ is −1; none behind, 0.
    let corrections: Vec<f64> = found.episodes.iter().filter_map(|e| e.correction[1]).collect();
    assert!((corrections[0] - (-2.0f64 / 3.0).exp()).abs() < 1e-12 && corrections[1] == 1.0, "{corrections:?}");
}
