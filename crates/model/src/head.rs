//! From the last norm to a distribution over the vocabulary: values, derivatives and draws.

use tensor::gemm::{linear, linear_back, weight_grad};
use tensor::rows::first_not_finite;
use tensor::vocab::{BANNED, Normaliser, Target, draw, logits_back, most_likely, normalise, temper};
use tensor::{Buffer, Cpu, Isa, Panels, Term, Weights};

use crate::top;

/// What turns logits into π: the temperature and the tokens removed.
#[derive(Debug, Clone, Copy)]
pub struct Tempering<'a> {
    /// 1 / temperature.
    pub inverse: f32,
    /// Tokens removed.
    pub banned: &'a [u32],
}

impl Tempering<'_> {
    /// Nothing changed.
    pub const NONE: Tempering<'static> = Tempering { inverse: 1.0, banned: &[] };

    /// Whether it changes nothing.
    pub fn is_none(&self) -> bool {
        self.inverse == 1.0 && self.banned.is_empty()
    }

    /// Turns a row of raw logits into scaled ones in place.
    pub fn apply(&self, isa: Isa, z: &mut [f32]) {
        if self.inverse != 1.0 {
            temper(isa, z, self.inverse);
        }
        for token in self.banned {
            if let Some(z) = z.get_mut(*token as usize) {
                *z = BANNED;
            }
        }
    }
}

/// Raw logits of rows that are already normed.
///
/// - Shapes: `h [R, D]` → `[R, V]`.
pub fn logits(cpu: &Cpu, head: Weights<'_>, rows: usize, h: &[f32], out: &mut [f32]) {
    linear(cpu, rows, &[Term { x: h, ld: head.n_inputs(), w: head }], out, head.n_outputs(), false);
}

/// How a token is drawn from a row.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// The distribution; the temperature is 1 for a greedy draw.
    pub tempering: Tempering<'a>,
    /// Take the most likely token.
    pub greedy: bool,
    /// Keep only the k most likely.
    pub top_k: Option<usize>,
    /// Keep the smallest set of most likely tokens that reaches this probability.
    pub top_p: Option<f32>,
    /// Keep tokens at least this times as likely as the most likely one.
    pub min_p: Option<f32>,
    /// A number in [0, 1).
    pub uniform: f64,
}

/// A drawn token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub token: u32,
    /// Log-probability under π.
    pub logp: f32,
    /// Log-probability at temperature 1 with nothing removed.
    pub logp_t1: f32,
}

/// Draws a token from a row of raw logits, which is overwritten.
///
/// - Holds: `logp` is under all of π, whatever top-k, top-p and min-p cut off.
/// - Errors: a row that is not finite is `None`.
pub fn draw_row(isa: Isa, z: &mut [f32], how: &Draw<'_>) -> Option<Drawn> {
    if first_not_finite(isa, z).is_some() {
        return None;
    }
    let plain = normalise(isa, z);
    if how.tempering.is_none() {
        let token = pick(isa, z, &plain, how);
        let logp = plain.log_probability(token.1);
        return Some(Drawn { token: token.0, logp, logp_t1: logp });
    }
    let raw = z.to_vec();
    how.tempering.apply(isa, z);
    let pi = normalise(isa, z);
    let (token, scaled) = pick(isa, z, &pi, how);
    let logp_t1 = plain.log_probability(raw[token as usize]);
    Some(Drawn { token, logp: pi.log_probability(scaled), logp_t1 })
}

/// The token and its scaled logit.
fn pick(isa: Isa, z: &mut [f32], n: &Normaliser, how: &Draw<'_>) -> (u32, f32) {
    if how.greedy {
        let token = most_likely(z);
        return (token, z[token as usize]);
    }
    if how.top_k.is_none() && how.top_p.is_none() && how.min_p.is_none() {
        let keep = z.to_vec();
        let token = draw(isa, z, n, how.uniform);
        return (token, keep[token as usize]);
    }
    let keep = z.to_vec();
    cut(z, n, how);
    let rest = normalise(isa, z);
    let token = draw(isa, z, &rest, how.uniform);
    (token, keep[token as usize])
}

/// Bans what top-k, min-p and top-p leave out, in that order; ties keep the lower id.
fn cut(z: &mut [f32], n: &Normaliser, how: &Draw<'_>) {
    let mut order: Vec<u32> = (0..z.len() as u32).filter(|t| z[*t as usize] > BANNED).collect();
    order.sort_by(|a, b| z[*b as usize].total_cmp(&z[*a as usize]).then(a.cmp(b)));
    let mut kept = how.top_k.map_or(order.len(), |k| k.min(order.len()));
    if let Some(p) = how.min_p {
        let floor = f64::from(n.max) + tensor::math::ln(f64::from(p));
        kept = kept.min(order.iter().take_while(|t| f64::from(z[**t as usize]) >= floor).count());
    }
    if let Some(p) = how.top_p {
        // Of what is kept so far, renormalised.
        let mass: Vec<f64> =
            order[..kept].iter().map(|t| tensor::math::exp_f64(f64::from(z[*t as usize]) - n.log_sum)).collect();
        let total: f64 = mass.iter().sum();
        let mut reached = 0.0;
        let enough = mass.iter().position(|m| {
            reached += m;
            reached >= f64::from(p) * total
        });
        kept = enough.map_or(kept, |i| i + 1);
    }
    for token in &order[kept.max(1)..] {
        z[*token as usize] = BANNED;
    }
}

/// Logits kept between values and derivatives; what has more computes them twice.
const KEPT: usize = 40 << 20;

/// What is found of a row.
#[derive(Debug, Clone)]
pub struct RowValues {
    /// The row's normaliser.
    pub normaliser: Normaliser,
    /// Log-probabilities of its targets.
    pub logp: Vec<f32>,
    /// Its most likely tokens with their log-probabilities, falling; where asked for.
    pub top: Vec<(u32, f32)>,
}

/// The fused vocabulary loss: never more logits at once than a chunk of rows.
#[derive(Debug, Default)]
pub struct VocabularyLoss {
    z: Buffer,
}

impl VocabularyLoss {
    /// Rows whose logits are kept.
    pub fn rows_at_once(vocabulary: usize) -> usize {
        (KEPT / vocabulary.max(1)).clamp(64, 4096)
    }

    /// Each row's normaliser, the log-probabilities of its tokens, and its `top_k` most likely ones.
    ///
    /// - Shapes: `h [R, D]` normed; `tokens[r]` are the row's targets.
    /// - Holds: of equal logits the lower id comes first; a row without a target has no most likely tokens named.
    pub fn values(
        &mut self,
        cpu: &Cpu,
        head: Weights<'_>,
        h: &[f32],
        tokens: &[&[u32]],
        top_k: usize,
        tempering: &Tempering<'_>,
    ) -> Vec<RowValues> {
        let mut all = Vec::with_capacity(tokens.len());
        for chunk in chunks(tokens.len(), head.n_outputs()) {
            self.scaled(cpu, head, h, chunk.clone(), tempering);
            let mut out: Vec<Option<RowValues>> = vec![None; chunk.len()];
            let slots = std::sync::Mutex::new(&mut out);
            let v = head.n_outputs();
            cpu.each(chunk.len(), 1, |i| {
                let z = &self.z[i * v..(i + 1) * v];
                let normaliser = normalise(cpu.isa(), z);
                let logp = |t: &u32| normaliser.log_probability(z[*t as usize]);
                let targets = tokens[chunk.start + i];
                let k = if targets.is_empty() { 0 } else { top_k };
                let top = top::most_likely(z, k).into_iter().map(|t| (t, logp(&t))).collect();
                let found = RowValues { normaliser, logp: targets.iter().map(logp).collect(), top };
                slots.lock().expect("no unit panics while it holds the lock")[i] = Some(found);
            });
            all.extend(out.into_iter().map(|o| o.expect("every row was computed")));
        }
        all
    }

    /// Derivative by `h` and, where asked, the head's gradient, given each row's targets with their derivatives.
    ///
    /// - Shapes: `dh [R, D]` overwritten.
    /// - Holds: called right after [`VocabularyLoss::values`] with the same rows; the head's gradient sums over rows in
    ///   order; a row without a target adds nothing.
    pub fn backward(
        &mut self,
        cpu: &Cpu,
        head: Weights<'_>,
        h: &[f32],
        values: &[Normaliser],
        targets: &[Vec<Target>],
        tempering: &Tempering<'_>,
        dh: &mut [f32],
        mut grad: Option<&mut Panels>,
    ) {
        let (v, d) = (head.n_outputs(), head.n_inputs());
        let n_chunks = chunks(targets.len(), v).count();
        for chunk in chunks(targets.len(), v) {
            if n_chunks > 1 {
                self.scaled(cpu, head, h, chunk.clone(), tempering);
            }
            let rows = chunk.len();
            let z = &mut self.z[..rows * v];
            cpu.each_row(rows, 1, (&mut *z, v), |i, z| match targets[chunk.start + i].as_slice() {
                [] => z.fill(0.0),
                targets => logits_back(cpu.isa(), z, &values[chunk.start + i], targets, tempering.inverse),
            });
            let h = &h[chunk.start * d..chunk.end * d];
            let dh = &mut dh[chunk.start * d..chunk.end * d];
            linear_back(cpu, rows, &[Term { x: z, ld: v, w: head }], dh, d, false);
            if let Some(grad) = grad.as_deref_mut() {
                weight_grad(cpu, rows, (h, d), (z, v), grad);
            }
        }
    }

    fn scaled(
        &mut self,
        cpu: &Cpu,
        head: Weights<'_>,
        h: &[f32],
        rows: std::ops::Range<usize>,
        tempering: &Tempering<'_>,
    ) {
        let (v, d) = (head.n_outputs(), head.n_inputs());
        let z = self.z.reserve(rows.len() * v);
        logits(cpu, head, rows.len(), &h[rows.start * d..rows.end * d], z);
        if !tempering.is_none() {
            cpu.each_row(rows.len(), 1, (z, v), |_, z| tempering.apply(cpu.isa(), z));
        }
    }
}

fn chunks(rows: usize, vocabulary: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let most = VocabularyLoss::rows_at_once(vocabulary);
    (0..rows).step_by(most).map(move |start| start..(start + most).min(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(uniform: f64) -> Draw<'static> {
        Draw { tempering: Tempering::NONE, greedy: false, top_k: None, top_p: None, min_p: None, uniform }
    }

    fn tokens(logits: &[f32], how: impl Fn(f64) -> Draw<'static>) -> Vec<u32> {
        let mut all: Vec<u32> = (0..1000)
            .map(|i| draw_row(Isa::best(), &mut logits.to_vec(), &how(f64::from(i) / 1000.0)).unwrap().token)
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn cuts_keep_what_they_say() {
        // Probabilities .4, .3, .2, .1 in scrambled places.
        let z: Vec<f32> = [0.2_f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect();
        assert_eq!(tokens(&z, how), [0, 1, 2, 3]);
        assert_eq!(tokens(&z, |u| Draw { top_k: Some(2), ..how(u) }), [1, 3]);
        assert_eq!(tokens(&z, |u| Draw { top_p: Some(0.69), ..how(u) }), [1, 3]);
        assert_eq!(tokens(&z, |u| Draw { top_p: Some(0.71), ..how(u) }), [0, 1, 3]);
        assert_eq!(tokens(&z, |u| Draw { min_p: Some(0.4), ..how(u) }), [0, 1, 3]);
        assert_eq!(tokens(&z, |u| Draw { greedy: true, ..how(u) }), [1]);
        assert_eq!(tokens(&[1.0, 1.0, 1.0], |u| Draw { top_k: Some(1), ..how(u) }), [0]);
    }

    #[test]
    fn log_probabilities_are_under_all_of_pi_and_at_temperature_one() {
        let z: Vec<f32> = [0.2_f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect();
        let tempering = Tempering { inverse: 2.0, banned: &[1] };
        let got = draw_row(Isa::best(), &mut z.clone(), &Draw { tempering, top_k: Some(1), ..how(0.5) }).unwrap();
        // Squares of .2, .1, .3 are .04, .01, .09: π(3) = 9/14.
        assert_eq!(got.token, 3);
        assert!((f64::from(got.logp) - (9.0_f64 / 14.0).ln()).abs() < 1e-6);
        assert!((f64::from(got.logp_t1) - 0.3_f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_row_that_is_not_finite_draws_nothing() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(draw_row(Isa::best(), &mut [0.0, bad, 1.0], &how(0.5)), None);
        }
    }
}
