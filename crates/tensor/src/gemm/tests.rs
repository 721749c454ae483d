use super::*;
use crate::buffer::Buffer;

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

fn weights(parts: Vec<Part>, seed: u32) -> Panels {
    let mut w = Panels::with_parts(parts.clone());
    for part in parts {
        for n in part.outputs {
            w.set_row(n, &numbers(part.inputs.len(), seed + n as u32));
        }
    }
    w
}

/// The definition: one chain an element.
fn by_definition(rows: usize, terms: &[Term<'_>], n: usize, start: &[f32], accumulate: bool) -> Vec<f32> {
    let mut y = vec![0.0; rows * n];
    for r in 0..rows {
        for part in single(terms[0].w).parts() {
            for o in part.outputs.clone() {
                let mut acc = if accumulate { start[r * n + o] } else { 0.0 };
                for term in terms {
                    let Some(own) = single(term.w).parts().iter().find(|p| p.outputs.contains(&o)) else { continue };
                    let mut row = vec![0.0; own.inputs.len()];
                    single(term.w).row(o, &mut row);
                    for (i, w) in row.iter().enumerate() {
                        acc = term.x[r * term.ld + own.inputs.start + i].mul_add(*w, acc);
                    }
                }
                y[r * n + o] = acc;
            }
        }
    }
    y
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn everywhere(mut f: impl FnMut(&Cpu)) {
    for isa in Isa::available() {
        for n_threads in [1, 3] {
            f(&Cpu::new(isa, n_threads).unwrap());
        }
    }
}

fn fused(k: usize) -> Vec<Part> {
    vec![
        Part { outputs: 0..70, inputs: 0..k },
        Part { outputs: 70..103, inputs: 0..k },
        Part { outputs: 103..105, inputs: 0..k },
    ]
}

fn adapter(r: usize) -> Vec<Part> {
    vec![Part { outputs: 0..70, inputs: 0..r }, Part { outputs: 103..105, inputs: r..2 * r }]
}

#[test]
fn forward_is_one_chain_on_every_vector_set_and_thread_count() {
    for (rows, k) in [(1, 3), (5, 64), (13, 385), (250, 40), (3, 800)] {
        let (w, b) = (weights(fused(k), 1), weights(adapter(4), 500));
        let (x, t, y0) = (numbers(rows * k, 7), numbers(rows * 8, 8), numbers(rows * 105, 9));
        let terms = [Term { x: &x, ld: k, w: (&w).into() }, Term { x: &t, ld: 8, w: (&b).into() }];
        for accumulate in [false, true] {
            let want = by_definition(rows, &terms, 105, &y0, accumulate);
            everywhere(|cpu| {
                let mut y = y0.clone();
                linear(cpu, rows, &terms, &mut y, 105, accumulate);
                assert_eq!(bits(&y), bits(&want), "{rows} x {k} {accumulate} {cpu:?}");
            });
        }
    }
}

#[test]
fn backward_is_one_chain_over_outputs_then_adapters() {
    for (rows, k) in [(1, 3), (7, 70), (40, 130)] {
        let (w, a) = (weights(fused(k), 1), weights(vec![Part { outputs: 0..8, inputs: 0..k }], 900));
        let (dy, dt) = (numbers(rows * 105, 3), numbers(rows * 8, 4));
        let mut want = vec![0.0; rows * k];
        for r in 0..rows {
            for i in 0..k {
                let mut acc = 0.0_f32;
                let mut row = vec![0.0; k];
                for n in 0..105 {
                    w.row(n, &mut row);
                    acc = dy[r * 105 + n].mul_add(row[i], acc);
                }
                for n in 0..8 {
                    a.row(n, &mut row);
                    acc = dt[r * 8 + n].mul_add(row[i], acc);
                }
                want[r * k + i] = acc;
            }
        }
        everywhere(|cpu| {
            let mut dx = vec![9.0; rows * k];
            let terms = [Term { x: &dy, ld: 105, w: (&w).into() }, Term { x: &dt, ld: 8, w: (&a).into() }];
            linear_back(cpu, rows, &terms, &mut dx, k, false);
            assert_eq!(bits(&dx), bits(&want), "{rows} x {k} {cpu:?}");
        });
    }
}

#[test]
fn backward_through_an_adapter_keeps_its_parts_apart() {
    let (rows, r) = (9, 3);
    let b = weights(adapter(r), 77);
    let dy = numbers(rows * 105, 5);
    let mut want = vec![0.0; rows * 2 * r];
    for row in 0..rows {
        for part in b.parts() {
            for (j, input) in part.inputs.clone().enumerate() {
                let mut acc = 0.0_f32;
                for n in part.outputs.clone() {
                    let mut w = vec![0.0; r];
                    b.row(n, &mut w);
                    acc = dy[row * 105 + n].mul_add(w[j], acc);
                }
                want[row * 2 * r + input] = acc;
            }
        }
    }
    everywhere(|cpu| {
        let mut dt = vec![0.0; rows * 2 * r];
        linear_back(cpu, rows, &[Term { x: &dy, ld: 105, w: (&b).into() }], &mut dt, 2 * r, false);
        assert_eq!(bits(&dt), bits(&want));
    });
}

#[test]
fn weight_gradients_are_one_chain_over_rows_however_they_are_cut() {
    for (parts, k) in [(fused(70), 70), (adapter(4), 8)] {
        let rows = 401;
        let (x, dy) = (numbers(rows * k, 11), numbers(rows * 105, 12));
        let mut want = Panels::with_parts(parts.clone());
        for part in &parts {
            for n in part.outputs.clone() {
                let chain = |i: usize| (0..rows).fold(0.0_f32, |acc, r| x[r * k + i].mul_add(dy[r * 105 + n], acc));
                let row: Vec<f32> = part.inputs.clone().map(chain).collect();
                want.set_row(n, &row);
            }
        }
        everywhere(|cpu| {
            for cuts in [vec![0, rows], vec![0, 1, 6, 390, rows]] {
                let mut grad = Panels::with_parts(parts.clone());
                let mut scratch = Buffer::default();
                for w in cuts.windows(2) {
                    let (x, dy) = (&x[w[0] * k..], &dy[w[0] * 105..]);
                    weight_grad(cpu, w[1] - w[0], (x, k), (dy, 105), &mut grad, &mut scratch);
                }
                assert_eq!(bits(grad.data()), bits(want.data()), "{cuts:?} {cpu:?}");
            }
        });
    }
}

fn single(w: Weights<'_>) -> &Panels {
    match w {
        Weights::Single(w) => w,
        Weights::Half(_) => panic!("these tests look at f32 weights"),
    }
}

/// The definition in bf16: inputs and weights rounded, one chain of flushing fused multiply-adds.
fn half_by_definition(rows: usize, x: &[f32], k: usize, w: &Panels, n: usize) -> Vec<f32> {
    let round = |v: f32| from_bf16(to_bf16(v));
    let mut y = vec![0.0; rows * n];
    for r in 0..rows {
        for o in 0..n {
            let mut row = vec![0.0; k];
            w.row(o, &mut row);
            let mut acc = 0.0_f32;
            for i in 0..k {
                acc = round(x[r * k + i]).mul_add(round(row[i]), acc);
                if acc.abs() < f32::MIN_POSITIVE {
                    acc = 0.0_f32.copysign(acc);
                }
            }
            y[r * n + o] = acc;
        }
    }
    y
}

#[test]
fn bf16_products_are_one_chain_with_and_without_the_instruction() {
    for (rows, k, scale) in [(1, 2, 1.0), (5, 63, 1.0), (13, 801, 1.0), (250, 40, 1.0), (9, 64, 1e-19), (9, 64, 2e-20)]
    {
        let mut w = weights(fused(k), 1);
        w.data_mut().iter_mut().for_each(|v| *v *= scale);
        let half = HalfPanels::of(&w);
        let x: Vec<f32> = numbers(rows * k, 7).iter().map(|v| v * scale).collect();
        let want = half_by_definition(rows, &x, k, &w, 105);
        everywhere(|cpu| {
            let mut y = vec![9.0; rows * 105];
            linear(cpu, rows, &[Term { x: &x, ld: k, w: (&half).into() }], &mut y, 105, false);
            assert_eq!(bits(&y), bits(&want), "{rows} x {k} at {scale} {cpu:?}");
        });
    }
}

#[test]
fn an_adapter_continues_a_bf16_chain_in_f32_and_rows_do_not_meet() {
    let (rows, k) = (70, 64);
    let (w, b) = (weights(fused(k), 1), weights(adapter(4), 500));
    let half = HalfPanels::of(&w);
    let (x, t) = (numbers(rows * k, 7), numbers(rows * 8, 8));
    let mut want = half_by_definition(rows, &x, k, &w, 105);
    let continued = by_definition(rows, &[Term { x: &t, ld: 8, w: (&b).into() }], 105, &want, true);
    for r in 0..rows {
        for o in (0..70).chain(103..105) {
            want[r * 105 + o] = continued[r * 105 + o];
        }
    }
    everywhere(|cpu| {
        let terms = [Term { x: &x, ld: k, w: (&half).into() }, Term { x: &t, ld: 8, w: (&b).into() }];
        let mut y = vec![0.0; rows * 105];
        linear(cpu, rows, &terms, &mut y, 105, false);
        assert_eq!(bits(&y), bits(&want), "{cpu:?}");
        // One row alone, as a batch of one.
        let alone = [Term { x: &x[5 * k..], ld: k, w: (&half).into() }, Term { x: &t[5 * 8..], ld: 8, w: (&b).into() }];
        let mut y = vec![0.0; 105];
        linear(cpu, 1, &alone, &mut y, 105, false);
        assert_eq!(bits(&y), bits(&want[5 * 105..6 * 105]), "{cpu:?}");
    });
}

#[test]
fn a_backward_product_uses_the_rounded_weights() {
    let (rows, k) = (7, 71);
    let w = weights(fused(k), 1);
    let mut rounded = w.zeros_like();
    for (r, v) in rounded.data_mut().iter_mut().zip(w.data()) {
        *r = from_bf16(to_bf16(*v));
    }
    let half = HalfPanels::of(&w);
    let dy = numbers(rows * 105, 3);
    everywhere(|cpu| {
        let (mut got, mut want) = (vec![0.0; rows * k], vec![1.0; rows * k]);
        linear_back(cpu, rows, &[Term { x: &dy, ld: 105, w: (&half).into() }], &mut got, k, false);
        linear_back(cpu, rows, &[Term { x: &dy, ld: 105, w: (&rounded).into() }], &mut want, k, false);
        assert_eq!(bits(&got), bits(&want), "{cpu:?}");
    });
}

#[test]
fn rounding_to_bf16_is_to_nearest_even_and_flushes_denormals() {
    for (x, want) in [
        (1.0, 1.0),
        (1.0 + 1.0 / 256.0, 1.0),
        (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
        (-2.5e-39, 0.0),
        (f32::INFINITY, f32::INFINITY),
        (f32::MAX, f32::INFINITY),
    ] {
        assert_eq!(from_bf16(to_bf16(x)), want, "{x}");
    }
    assert!(from_bf16(to_bf16(f32::NAN)).is_nan());
}
