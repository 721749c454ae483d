//! AdamW over whatever is trained.

use model::block::Grads;
use model::params::Storage;
use model::{Adapter, Config, Params, ValueHead};
use policy::{AdamStep, PolicyError, UpdateReport};
use tensor::Cpu;
use tensor::adam::{AdamFactors, adam_all, square_sum};
use tensor::math;

use crate::engine::Trainable;

/// First and second moments, in the shape of what is trained.
#[derive(Debug)]
pub(crate) struct Moments {
    pub(crate) weights: Weights<(Params, Params), (Adapter, Adapter)>,
    /// Of the value head, where there is one.
    pub(crate) value: Option<Box<(ValueHead, ValueHead)>>,
}

/// Something of all weights, or of the adapter alone.
#[derive(Debug)]
pub(crate) enum Weights<F, A> {
    Full(Box<F>),
    Adapter(Box<A>),
}

/// What is trained.
pub(crate) struct Trained<'a> {
    pub(crate) params: &'a mut Params,
    pub(crate) adapter: Option<&'a mut Adapter>,
    pub(crate) value: Option<&'a mut ValueHead>,
}

/// Gradient and moments of what is trained, as zeros; nothing when frozen.
pub(crate) fn start(
    config: &Config,
    trainable: &Trainable,
    adapter: Option<&Adapter>,
    with_value: bool,
) -> Option<(Grads, Moments)> {
    let head = || with_value.then(|| ValueHead::zeroed(config));
    let value = head().zip(head()).map(Box::new);
    let (grads, weights) = match (trainable, adapter) {
        (Trainable::Full {}, _) => {
            let zeros = |head| Params::zeroed(config, head);
            let grads = Grads { params: Some(zeros(true)), adapter: None, value: head() };
            (grads, Weights::Full(Box::new((zeros(false), zeros(false)))))
        }
        (Trainable::Lora { .. }, Some(a)) => {
            let zeros = || {
                let zeros = Adapter::zeroed(config, a.rank, a.alpha, &a.targets);
                zeros.expect("the shape of an adapter that exists")
            };
            let grads = Grads { params: None, adapter: Some(zeros()), value: head() };
            (grads, Weights::Adapter(Box::new((zeros(), zeros()))))
        }
        _ => return None,
    };
    Some((grads, Moments { weights, value }))
}

/// Clears an accumulated gradient.
pub(crate) fn clear(grads: &mut Grads) {
    let weights = grads.params.iter_mut().flat_map(Params::storage_mut);
    let adapter = grads.adapter.iter_mut().flat_map(Adapter::storage_mut);
    for g in weights.chain(adapter).chain(grads.value.iter_mut().flat_map(ValueHead::storage_mut)) {
        g.into_inner().fill(0.0);
    }
}

/// Moves what is trained along the accumulated gradient, then clears it.
///
/// - Holds: a tied head's gradient is added to the embedding's once, here. Decay applies to matrices, not to norms and
///   biases. A value head comes last.
/// - Errors: a gradient that is not finite; then nothing moves, and it is cleared.
pub(crate) fn update(
    cpu: &Cpu,
    trained: Trained<'_>,
    grads: &mut Grads,
    moments: &mut Moments,
    step: &AdamStep,
    n_updates: u64,
) -> Result<UpdateReport, PolicyError> {
    if let Some(g) = &mut grads.params
        && trained.params.head.is_none()
    {
        let head = g.head.as_ref().expect("a gradient has its own head");
        for (e, h) in g.embedding.data_mut().iter_mut().zip(head.data()) {
            *e += h;
        }
    }
    // A tied head comes last in the gradient and has no counterpart in the weights.
    let (mut weights, mut first, mut second): (Vec<_>, Vec<_>, Vec<_>) = match (&mut moments.weights, trained.adapter) {
        (Weights::Full(m), _) => (trained.params.storage_mut(), m.0.storage_mut(), m.1.storage_mut()),
        (Weights::Adapter(m), Some(a)) => (a.storage_mut(), m.0.storage_mut(), m.1.storage_mut()),
        (Weights::Adapter(_), None) => (Vec::new(), Vec::new(), Vec::new()),
    };
    let mut gradient: Vec<Storage<&[f32]>> = match (&grads.params, &grads.adapter) {
        (Some(p), _) => p.storage(),
        (None, Some(a)) => a.storage(),
        (None, None) => Vec::new(),
    };
    gradient.truncate(weights.len());
    if let (Some(w), Some(g), Some(m)) = (trained.value, &grads.value, &mut moments.value) {
        weights.extend(w.storage_mut());
        gradient.extend(g.storage());
        first.extend(m.0.storage_mut());
        second.extend(m.1.storage_mut());
    }
    let grad_norm = gradient.iter().map(|g| square_sum(cpu, g.into_inner())).sum::<f64>().sqrt();
    if !grad_norm.is_finite() {
        clear(grads);
        let place = format!("update {n_updates}");
        return Err(PolicyError::NotFinite { what: "the gradient's norm", place });
    }
    let clip_scale = if grad_norm > step.clip_norm { step.clip_norm / grad_norm } else { 1.0 };
    for (((w, g), m), v) in weights.into_iter().zip(gradient).zip(first).zip(second) {
        let decays = matches!(w, Storage::Matrix(_));
        let factors = factors(step, clip_scale, n_updates, decays);
        adam_all(cpu, factors, g.into_inner(), w.into_inner(), m.into_inner(), v.into_inner());
    }
    clear(grads);
    Ok(UpdateReport { grad_norm, clip_scale, n_updates })
}

/// The kernel's factors, computed in double precision and rounded once.
fn factors(step: &AdamStep, clip_scale: f64, n_updates: u64, decays: bool) -> AdamFactors {
    let n = n_updates as f64;
    let decay = if decays { step.learning_rate * step.weight_decay } else { 0.0 };
    AdamFactors {
        beta1: step.beta1 as f32,
        beta2: step.beta2 as f32,
        epsilon: step.epsilon as f32,
        step: (step.learning_rate / (1.0 - math::pow(step.beta1, n))) as f32,
        correct2: (1.0 / (1.0 - math::pow(step.beta2, n))) as f32,
        keep: (1.0 - decay) as f32,
        clip: clip_scale as f32,
    }
}
