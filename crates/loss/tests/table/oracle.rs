//! The reduced loss written down a second time, as plainly as it can be: no derivative, no bound on speed or size, the
//! platform's functions.
//!
//! `now` holds what a derivative moves, `fixed` the same where a factor is stop-gradient.

use surefoot_loss::{Correction, Estimator, Loss, Reduction, Term, Totals};

use super::rows::{K, Lists};

/// What the policy computed for a group.
#[derive(Debug, Clone)]
pub(crate) struct Now {
    pub(crate) logp: Vec<Vec<f64>>,
    pub(crate) entropy: Vec<Vec<f64>>,
    pub(crate) value: Vec<Vec<f64>>,
    pub(crate) top: Vec<Vec<f64>>,
}

fn wide(list: &[f32]) -> Vec<f64> {
    list.iter().map(|v| f64::from(*v)).collect()
}

impl Now {
    pub(crate) fn of(rows: &[Lists]) -> Self {
        Now {
            logp: rows.iter().map(|l| wide(&l.logp)).collect(),
            entropy: rows.iter().map(|l| wide(&l.entropy)).collect(),
            value: rows.iter().map(|l| wide(&l.value)).collect(),
            top: rows.iter().map(|l| wide(&l.top.logp)).collect(),
        }
    }
}

fn trained(row: &Lists) -> Vec<usize> {
    (0..row.trained.len()).filter(|t| row.trained[*t]).collect()
}

/// How far along from μ to π the proximal policy lies.
fn share_of_the_way(row: &Lists, t: usize) -> f64 {
    f64::from(row.lag[t]) / f64::from(row.lag[t] + 1)
}

/// The correction's weight of each token.
fn weights(correction: &Correction, row: &Lists, fixed: &[f64]) -> Vec<f64> {
    let gap = |t: usize| f64::from(row.old[t]) - f64::from(row.sampler[t]);
    let all = trained(row);
    let mean = |f: &dyn Fn(usize) -> f64| all.iter().map(|t| f(*t)).sum::<f64>() / all.len() as f64;
    let sum: f64 = all.iter().map(|t| gap(*t)).sum();
    let band = |w: f64, low: f64, high: f64| if w < low || w > high { 0.0 } else { w };
    let pass = |mean: f64, tau: f64| f64::from(u8::from(mean <= tau));
    let one = |t: usize| match correction {
        Correction::Uncorrected(_) => 1.0,
        Correction::TokenTis(c) => gap(t).exp().min(c.cap),
        Correction::SequenceTis(c) => sum.exp().min(c.cap),
        Correction::TokenMask(c) => band(gap(t).exp(), c.low, c.high),
        Correction::SequenceMask(c) => band(sum.exp(), c.low, c.high),
        Correction::Geometric(c) => band(mean(&gap).exp(), c.low, c.high),
        Correction::K2(c) => pass(mean(&|t| gap(t) * gap(t) / 2.0), c.tau),
        Correction::K3(c) => pass(mean(&|t| gap(t).exp() - 1.0 - gap(t)), c.tau),
        Correction::Decoupled(_) => (share_of_the_way(row, t) * (fixed[t] - f64::from(row.sampler[t]))).exp(),
        Correction::M2po(_) if row.weight[t] == 0.0 => 0.0,
        Correction::M2po(_) => gap(t).exp(),
        Correction::Vespo(_) => {
            let (a, lambda) = if row.advantage[t] >= 0.0 { (2.0, 3.0) } else { (3.0, 2.0) };
            sum.exp().powf(a) * (lambda * (1.0 - sum.exp())).exp()
        }
    };
    (0..row.trained.len()).map(|t| if row.trained[t] { one(t) } else { 0.0 }).collect()
}

/// What the term's ratio is measured from.
fn anchor(correction: &Correction, row: &Lists, fixed: &[f64], t: usize) -> f64 {
    let sampler = f64::from(row.sampler[t]);
    match correction {
        Correction::Decoupled(_) => sampler + share_of_the_way(row, t) * (fixed[t] - sampler),
        _ => f64::from(row.old[t]),
    }
}

fn kl(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p * (p.ln() - q.ln())).sum()
}

fn with_bucket(logp: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> = logp.iter().map(|l| l.exp()).collect();
    all.push(1.0 - all.iter().sum::<f64>());
    all
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Everything that is held fixed.
#[derive(Debug)]
pub(crate) struct Fixed {
    now: Now,
    /// The correction's weights.
    weights: Vec<Vec<f64>>,
    /// What the term's ratio is measured from.
    anchor: Vec<Vec<f64>>,
    live: Vec<Vec<usize>>,
}

impl Fixed {
    pub(crate) fn of(loss: &Loss, rows: &[Lists], now: &Now) -> Self {
        let correction = &loss.correction;
        let pairs = || rows.iter().zip(&now.logp);
        let weights: Vec<Vec<f64>> = pairs().map(|(l, now)| weights(correction, l, now)).collect();
        let anchors = |(l, now): (&Lists, &Vec<f64>)| (0..now.len()).map(|t| anchor(correction, l, now, t)).collect();
        let live = |(l, w): (&Lists, &Vec<f64>)| {
            trained(l).into_iter().filter(|t| f64::from(l.weight[*t]) * w[*t] != 0.0).collect()
        };
        Fixed {
            now: now.clone(),
            anchor: pairs().map(anchors).collect(),
            live: rows.iter().zip(&weights).map(live).collect(),
            weights,
        }
    }
}

/// Each token's loss, before it is multiplied with anything.
fn term_losses(loss: &Loss, rows: &[Lists], now: &Now, fixed: &Fixed) -> Vec<Vec<f64>> {
    let live = &fixed.live;
    let mut out: Vec<Vec<f64>> = rows.iter().map(|l| vec![0.0; l.trained.len()]).collect();
    let log_ratio = |at: &Now, r: usize, t: usize| at.logp[r][t] - fixed.anchor[r][t];
    let clipped = |ratio: f64, a: f64, low: f64, high: f64| -(ratio * a).min(ratio.clamp(low, high) * a);
    let capped = |cap: Option<f64>, r: usize, t: usize| {
        cap.map_or(1.0, |cap| log_ratio(&fixed.now, r, t).clamp(-20.0, 20.0).exp().min(cap))
    };
    for r in 0..rows.len() {
        let row = &rows[r];
        let mean = live[r].iter().map(|t| log_ratio(now, r, *t)).sum::<f64>() / live[r].len() as f64;
        for t in live[r].iter().copied() {
            let (a, logp) = (f64::from(row.advantage[t]), now.logp[r][t]);
            let ratio = log_ratio(now, r, t).exp();
            out[r][t] = match &loss.term {
                Term::PolicyGradient(p) => {
                    let plain = clipped(ratio, a, p.ratio_min, p.ratio_max);
                    p.dual_clip.filter(|_| a < 0.0).map_or(plain, |c| plain.min(-c * a))
                }
                Term::Reinforce(_) => -a * logp,
                Term::Nll(_) => -logp,
                Term::Gspo(p) => clipped(mean.exp(), a, p.ratio_min, p.ratio_max),
                Term::Cispo(p) => -log_ratio(&fixed.now, r, t).exp().clamp(p.ratio_min, p.ratio_max) * a * logp,
                Term::Sapo(p) => {
                    let tau = if a > 0.0 { p.tau_positive } else { p.tau_negative };
                    -sigmoid(tau * (ratio - 1.0)) * 4.0 / tau * a
                }
                Term::Dro(p) => -(a * logp - 0.5 * p.beta * (logp - f64::from(row.sampler[t])).powi(2)),
                Term::Distill(p) => {
                    capped(p.cap, r, t) * (fixed.now.logp[r][t] - f64::from(row.teacher.logp[t])) * logp
                }
                Term::Divergence(p) => {
                    let s = with_bucket(&now.top[r][t * K..(t + 1) * K]);
                    let q = with_bucket(&wide(&row.teacher_top().logp[t * K..(t + 1) * K]));
                    let m: Vec<f64> = s.iter().zip(&q).map(|(s, q)| (1.0 - p.alpha) * s + p.alpha * q).collect();
                    let apart = match p.alpha {
                        0.0 => kl(&q, &s),
                        1.0 => kl(&s, &q),
                        alpha => (1.0 - alpha) * kl(&s, &m) + alpha * kl(&q, &m),
                    };
                    capped(p.cap, r, t) * apart
                }
                Term::Dpo(_) | Term::Oapl(_) | Term::BradleyTerry(_) => 0.0,
            };
        }
    }
    let sum = |places: &[usize], f: &dyn Fn(usize, usize) -> f64| -> f64 {
        places.iter().flat_map(|r| live[*r].iter().map(move |t| f(*r, *t))).sum()
    };
    let mut spread = |places: &[usize], whole: f64| {
        let n = sum(places, &|_, _| 1.0);
        places.iter().for_each(|r| live[*r].iter().for_each(|t| out[*r][*t] = whole / n));
    };
    let places = |wanted: &dyn Fn(&Lists) -> bool| -> Vec<usize> {
        (0..rows.len()).filter(|r| wanted(&rows[*r]) && !live[*r].is_empty()).collect()
    };
    for index in 0..9 {
        let side = |chosen| places(&|l: &Lists| l.pair.is_some_and(|p| p.index == index && p.chosen == chosen));
        let (chosen, rejected) = (side(true), side(false));
        let whole_pair = !chosen.is_empty() && !rejected.is_empty();
        let both = [chosen.clone(), rejected.clone()].concat();
        match &loss.term {
            Term::Dpo(p) if whole_pair => {
                let moved = |r: usize, t: usize| now.logp[r][t] - f64::from(rows[r].reference[t]);
                let margin = p.beta * (sum(&chosen, &moved) - sum(&rejected, &moved));
                spread(&both, -sigmoid(margin).ln());
            }
            Term::BradleyTerry(_) if whole_pair => {
                let score = |side: &[usize]| {
                    let last = *side.last().expect("a whole pair has rows on both sides");
                    now.value[last][*live[last].last().expect("only rows with a live token are listed")]
                };
                spread(&both, -sigmoid(score(&chosen) - score(&rejected)).ln());
            }
            Term::Oapl(p) => {
                let own = places(&|l: &Lists| l.episode == index);
                let moved = |r: usize, t: usize| now.logp[r][t] - f64::from(rows[r].sampler[t]);
                let a = sum(&own, &|r, t| f64::from(rows[r].advantage[t])) / sum(&own, &|_, _| 1.0);
                spread(&own, (p.beta2 * sum(&own, &moved) - a).powi(2));
            }
            _ => (),
        }
    }
    out
}

/// The reduced loss of a group.
pub(crate) fn reduced(loss: &Loss, totals: &Totals, rows: &[Lists], now: &Now, fixed: &Fixed) -> f64 {
    let multiplier = |r: usize, t: usize| f64::from(rows[r].weight[t]) * fixed.weights[r][t];
    let term = term_losses(loss, rows, now, fixed);
    let mut total = 0.0;
    for (r, row) in rows.iter().enumerate() {
        let mut own = 0.0;
        for t in trained(row) {
            let logp = now.logp[r][t];
            let mut one = term[r][t];
            if let Some(kl) = loss.kl {
                let k1 = logp - f64::from(row.reference[t]);
                one += kl.coefficient
                    * match kl.estimator {
                        Estimator::K1 => k1,
                        Estimator::K2 => k1 * k1 / 2.0,
                        Estimator::K3 => (-k1).exp() - 1.0 + k1,
                    };
            }
            one += f64::from(row.pull[t]) * (logp - f64::from(row.old[t])).abs();
            own += multiplier(r, t) * one;
            let mut beside = -loss.entropy_coefficient * now.entropy[r][t];
            if let Some(rule) = loss.value {
                let (value, old) = (now.value[r][t], f64::from(row.target.old[t]));
                let returns = f64::from(row.target.returns[t]);
                let near = rule.clip.map_or(value, |c| value.clamp(old - c, old + c));
                beside += rule.coefficient * 0.5 * (value - returns).powi(2).max((near - returns).powi(2));
            }
            own += f64::from(row.weight[t]) * beside;
        }
        let n = trained(row).len().max(1) as f64;
        let (tokens, sequences) = (totals.n_tokens as f64, totals.n_sequences as f64);
        total += match loss.reduction {
            Reduction::TokenMean => own / tokens,
            Reduction::SequenceMean => own / n / sequences,
            Reduction::SequenceSum => own / sequences,
            Reduction::FixedHorizon { horizon } => own / (sequences * f64::from(horizon)),
            Reduction::Sum => own,
            Reduction::PairMean => own / totals.n_pairs as f64,
        };
    }
    total
}
