use super::*;

pub(super) fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

pub(super) fn weights(parts: Vec<Part>, seed: u32) -> Panels {
    let mut w = Panels::with_parts(parts.clone());
    for part in parts {
        for n in part.outputs {
            w.set_row(n, &numbers(part.inputs.len(), seed + n as u32));
        }
    }
    w
}

/// The definition: one chain an element.
pub(super) fn by_definition(rows: usize, terms: &[Term<'_>], n: usize, start: &[f32], accumulate: bool) -> Vec<f32> {
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

pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

pub(super) fn everywhere(mut f: impl FnMut(&Cpu)) {
    for isa in Isa::available() {
        for n_threads in [1, 3] {
            f(&Cpu::new(isa, n_threads).unwrap());
        }
    }
}

pub(super) fn fused(k: usize) -> Vec<Part> {
    vec![
        Part { outputs: 0..70, inputs: 0..k },
        Part { outputs: 70..103, inputs: 0..k },
        Part { outputs: 103..105, inputs: 0..k },
    ]
}

pub(super) fn adapter(r: usize) -> Vec<Part> {
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
                for w in cuts.windows(2) {
                    let (x, dy) = (&x[w[0] * k..], &dy[w[0] * 105..]);
                    weight_grad(cpu, w[1] - w[0], (x, k), (dy, 105), &mut grad);
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
