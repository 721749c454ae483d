//! What each number of a run means and what to watch it for; documentation and pages use the same table.

/// One number that a step may report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its key in `metrics.jsonl` or `timings.jsonl`.
    pub key: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its unit, empty for a plain number.
    pub unit: &'static str,
    /// The key of the spread that is drawn around it, if any.
    pub spread: Option<&'static str>,
    /// What to watch, in one sentence.
    pub explanation: &'static str,
}

const fn metric(key: &'static str, title: &'static str, unit: &'static str, explanation: &'static str) -> Metric {
    Metric { key, title, unit, spread: None, explanation }
}

/// The numbers that have a title and an explanation, in the order they are shown.
pub const METRICS: &[Metric] = &[
    Metric {
        spread: Some("reward_std"),
        ..metric(
            "reward_mean",
            "Reward",
            "points",
            "Should rise within the first steps; the band is one standard deviation over the step's graded episodes.",
        )
    },
    metric(
        "reward_std",
        "Reward spread",
        "points",
        "Standard deviation over the step's graded episodes; near 0 there is nothing left to tell good from bad.",
    ),
    metric(
        "flat_group_share",
        "Groups without spread",
        "share",
        "Groups whose rewards are all alike teach nothing; much above a half means the tasks are too easy or too hard.",
    ),
    metric(
        "entropy",
        "Entropy",
        "nats a token",
        "How undecided the policy is; a slow fall is learning, a fall to 0 is collapse: lower the learning rate.",
    ),
    metric(
        "kl_start",
        "KL to start",
        "nats a token",
        "How far the policy has moved from where it started; a sudden climb often comes before worse answers.",
    ),
    metric(
        "kl_mismatch",
        "Mismatch KL",
        "nats a token",
        "Between the sampler's and the trainer's view of the same tokens; exactly 0 in the embedded engine, and an alarm anywhere else when it grows.",
    ),
    metric(
        "logp_gap_max",
        "Largest log-prob gap",
        "nats",
        "The largest difference between a recorded log-probability and the trainer's; exactly 0 on the first update of a step.",
    ),
    metric(
        "clip_share",
        "Clip share",
        "share",
        "Tokens whose ratio was clipped; above a few percent the updates are larger than the clip range means them to be.",
    ),
    metric(
        "ratio_max",
        "Largest ratio",
        "",
        "The largest trainer-to-sampler probability ratio; exactly 1 on the first update of a step.",
    ),
    metric(
        "loss",
        "Loss",
        "",
        "With centred advantages and ratio 1 it is near 0 while the gradient is not, so do not read progress from it; watch reward.",
    ),
    metric(
        "advantage_abs_mean",
        "Mean |advantage|",
        "points",
        "How much signal a step carries; 0 means that nothing was learned from it.",
    ),
    metric(
        "grad_norm",
        "Gradient norm",
        "",
        "Before clipping; steady is good, a spike marks a step worth reading, a steady climb means the learning rate is too high.",
    ),
    metric(
        "grad_clip_share",
        "Updates clipped",
        "share",
        "Updates whose gradient was scaled down to `clip_norm`; always 1 means the limit is the real learning rate.",
    ),
    metric(
        "dlogp_norm",
        "Push",
        "",
        "Norm over tokens of the loss's derivative by their log-probabilities; 0 only when nothing is taught.",
    ),
    metric("learning_rate", "Learning rate", "", "The schedule as it was run, warm-up included."),
    metric(
        "length_mean",
        "Reply length",
        "tokens",
        "Sampled tokens an episode; steady growth without more reward is padding.",
    ),
    metric("length_max", "Longest reply", "tokens", "At the limit, replies are being cut off."),
    metric(
        "truncated_share",
        "Truncated",
        "share",
        "Episodes cut off before the policy ended them; a high share means the limit is too low or the policy has forgotten how to stop.",
    ),
    metric(
        "failed_share",
        "Failed",
        "share",
        "Episodes the system failed, left out of the training signal; anything above 0 deserves a look at the causes.",
    ),
    metric(
        "lag_mean",
        "Lag",
        "versions",
        "Policy versions between sampling a token and training on it; 0 is on-policy.",
    ),
    metric("lag_max", "Largest lag", "versions", "The oldest token of the step; 0 is on-policy."),
    metric(
        "held_up",
        "Held up",
        "positions",
        "Positions that were sampled only because a group could wait no longer; often above 0 means that a larger `max_lag` would keep the sampler fuller.",
    ),
    metric("n_in_flight", "In flight", "", "Attempts set aside in the middle of a reply when the step was complete."),
    metric(
        "n_queued",
        "Queued groups",
        "",
        "Finished groups that wait for a later step; a steady climb means that sampling is ahead as far as `max_lag` lets it be.",
    ),
    metric(
        "replay_share",
        "Replayed",
        "share",
        "Groups of the step that are episodes of earlier steps, other runs or files.",
    ),
    metric(
        "ess",
        "Effective sample size",
        "share",
        "Of the correction's weights, (Σw)² / (n Σw²): 1 when all tokens count alike; near 0 a few tokens decide the step.",
    ),
    metric(
        "correction_mean",
        "Mean correction",
        "",
        "Mean weight of the correction over the step's tokens; far below 1 most of what was sampled is left aside.",
    ),
    metric(
        "silent_share",
        "Silenced tokens",
        "share",
        "Tokens that a correction, a selection or a mask left out; they stay in the denominator.",
    ),
    metric(
        "kl_ref",
        "KL to reference",
        "nats a token",
        "How far the policy is from the reference of its KL, by k3; the coefficient decides where it settles.",
    ),
    metric(
        "loss_value",
        "Value loss",
        "",
        "The value head's share of the loss; should fall while the explained variance rises.",
    ),
    metric(
        "explained_variance",
        "Explained variance",
        "",
        "How much of the returns' variance the value head foresees, at most 1; at 0 or below it is no better than the mean.",
    ),
    metric(
        "value_clip_share",
        "Values clipped",
        "share",
        "Values that moved beyond `value_clip` in one step; often above a few percent means too many updates a step.",
    ),
    metric(
        "pair_accuracy",
        "Pair accuracy",
        "share",
        "Pairs of which the chosen one stands above the rejected one; half is guessing; it is over training pairs, so hold some out.",
    ),
    metric(
        "pair_margin",
        "Pair margin",
        "",
        "How far the chosen one stands above the rejected one, as the loss sees it; growing without end is overfitting.",
    ),
    metric(
        "violations_per_100_calls",
        "Violations",
        "per 100 calls",
        "Tool calls that the gate did not let through, of a hundred; should fall where `gate.penalty` is above 0.",
    ),
    metric(
        "calls_mean",
        "Calls",
        "an episode",
        "Tool calls an episode; a fall to 0 means the policy has learned to do without its tools.",
    ),
    metric(
        "malformed_share",
        "Malformed calls",
        "share",
        "What began like a tool call and could not be read, of all that did; above a few percent the policy does not know its dialect.",
    ),
    metric(
        "call_failed_share",
        "Failed calls",
        "share",
        "Calls whose tool said that it could not do what was asked; the arguments make no sense to it.",
    ),
    metric(
        "n_restarts",
        "Restarts",
        "",
        "Sequences begun anew because the chat template rewrites what was said; each is trained on its own.",
    ),
    metric("n_episodes", "Episodes", "", "Episodes collected in the step, failed ones included."),
    metric("n_tokens", "Sampled tokens", "tokens", "All tokens the policy sampled in the step."),
    metric("n_updates", "Updates", "", "Optimiser moves of the step; 0 when nothing carried a signal."),
    metric("skipped", "Skipped", "", "1 when no group of the step carried a signal, so that no update was made."),
    metric("tokens_per_s", "Speed", "tokens/s", "Sampled tokens a second of the time spent collecting."),
    metric("step_s", "Step time", "s", "Wall time of the whole step, sampling and training."),
    metric("collect_s", "Collecting time", "s", "The part of it spent sampling and grading."),
    metric("memory_mib", "Memory", "MiB", "Largest resident memory so far; a steady climb is a leak."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_there_once_with_one_sentence() {
        for (i, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..i].iter().all(|m| m.key != metric.key && m.title != metric.title), "{}", metric.key);
            assert!(metric.explanation.ends_with('.') && !metric.explanation.contains(". "), "{}", metric.key);
            assert!(metric.spread.is_none_or(|s| METRICS.iter().any(|m| m.key == s)), "{}", metric.key);
        }
    }
}
