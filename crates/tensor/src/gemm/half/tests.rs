use super::super::tests::{adapter, bits, by_definition, everywhere, fused, numbers, weights};
use super::super::{Term, linear, linear_back};
use super::*;

fn round(v: f32) -> f32 {
    from_bf16(to_bf16(v))
}

/// The definition: inputs and weights rounded, one chain of fused multiply-adds from what `start` settles to.
fn half_by_definition(rows: usize, x: &[f32], w: &Panels, start: Option<&[f32]>) -> Vec<f32> {
    let (n, k) = (w.n_outputs(), w.n_inputs());
    let mut row = vec![0.0; k];
    let mut y = vec![0.0; rows * n];
    for o in 0..n {
        w.row(o, &mut row);
        for r in 0..rows {
            let first = start.map_or(0.0, |s| settled(s[r * n + o]));
            y[r * n + o] = (0..k).fold(first, |acc, i| round(x[r * k + i]).mul_add(round(row[i]), acc));
        }
    }
    y
}

/// The nearest multiple of 2⁻¹²⁶: scaled to whole numbers, exactly, where that can matter.
fn settled(c: f32) -> f32 {
    let scaled = f64::from(c) * 2.0_f64.powi(126);
    if scaled.abs() < 2.0_f64.powi(23) { (scaled.round_ties_even() * 2.0_f64.powi(-126)) as f32 + 0.0 } else { c }
}

/// Bits, with one for all that are not a number.
fn plain(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

type Kernel = (&'static str, unsafe fn(PairTile));

/// Every kernel that this processor can run, also those that are not its fastest.
fn kernels() -> Vec<Kernel> {
    #[allow(unused_mut, reason = "only x86-64 adds to it")]
    let mut all: Vec<Kernel> = vec![("portable", portable)];
    #[cfg(target_arch = "x86_64")]
    for isa in Isa::available() {
        match isa {
            Isa::Scalar => {}
            Isa::Avx2 => all.push(("avx2", x86::avx2_twin)),
            Isa::Avx512 => {
                all.push(("avx512 without the instruction", x86::avx512_twin));
                if is_x86_feature_detected!("avx512bf16") {
                    all.push(("avx512 with the instruction", x86::avx512));
                }
            }
        }
    }
    all
}

/// Numbers of one kind; the draws of a seed are the same for every kind.
fn draw(kind: &str, n: usize, seed: u32) -> Vec<f32> {
    let (size, pick) = (numbers(n, seed), numbers(n, seed + 1000));
    let power = |v: f32, p: f32, from: f32, to: f32| ((p + 0.5) * (to - from) + from).exp2().copysign(v);
    let one = |(v, p): (&f32, &f32)| match kind {
        "common" => *v,
        // Around the least that is not zero: sums cancel to a few of the smallest normal number.
        "small" => power(*v, *p, -57.0, -55.0),
        "denormal" if *p < 0.0 => f32::from_bits((v.to_bits() >> 9) & 0x7f_ffff) * v.signum(),
        "denormal" => power(*v, *p, -70.0, 0.0),
        "huge" => power(*v, *p, 50.0, 128.0),
        "any" => f32::from_bits(v.to_bits().wrapping_mul(2_654_435_761) ^ p.to_bits()),
        "special" if *p < -0.48 => f32::INFINITY.copysign(*v),
        "special" if *p > 0.49 => f32::NAN,
        "special" if *p > 0.3 => 0.0_f32.copysign(*v),
        "special" => *v,
        _ => panic!("no kind `{kind}`"),
    };
    size.iter().zip(&pick).map(one).collect()
}

const KINDS: [&str; 6] = ["common", "small", "denormal", "huge", "any", "special"];

#[test]
fn every_kernel_gives_the_bits_of_the_definition_for_every_tile_and_every_kind_of_number() {
    for (index, kind) in KINDS.iter().enumerate() {
        for lanes in [16, 32, 48, 64] {
            let k = 21 + lanes;
            let w = {
                let mut w = Panels::zeroed(lanes, k);
                (0..lanes).for_each(|o| w.set_row(o, &draw(kind, k, (index * 100 + o) as u32)));
                w
            };
            let cpu = Cpu::new(Isa::Scalar, 1).unwrap();
            let half = HalfPanels::of(&cpu, &w);
            let panel = &half.panels()[0];
            for rows in 1..=super::super::micro::max_rows(lanes) {
                let x = draw(kind, rows * k, rows as u32);
                let start = draw(KINDS[(index + rows) % KINDS.len()], rows * lanes, 77);
                let mut pairs = vec![0; rows * k.div_ceil(2)];
                for (x, pairs) in x.chunks(k).zip(pairs.chunks_mut(k.div_ceil(2))) {
                    round_row(Isa::Scalar, x, pairs);
                }
                for start in [None, Some(&start[..])] {
                    let want = half_by_definition(rows, &x, &w, start);
                    // In one go, and cut in two, as a product with many inputs is.
                    for ((name, kernel), cut) in kernels().into_iter().flat_map(|k| [0, 9].map(|cut| (k, cut))) {
                        let mut y = start.map_or(vec![f32::NAN; rows * lanes], <[f32]>::to_vec);
                        let data = half.panel_data(panel);
                        let all = k.div_ceil(2);
                        for (from, to) in [(0, cut), (cut, all)] {
                            let tile = PairTile {
                                a: pairs[from..].as_ptr(),
                                lda: all,
                                step: 1,
                                b: data[from * lanes..].as_ptr(),
                                ldb: lanes,
                                lanes,
                                c: y.as_mut_ptr(),
                                ldc: lanes,
                                rows,
                                k: to - from,
                                accumulate: start.is_some() || from > 0,
                            };
                            if to > from {
                                // SAFETY: the operands cover the tile, and the processor has the kernel's vectors.
                                unsafe { kernel(tile) };
                            }
                        }
                        let what = format!("{name}, {kind} numbers, {rows} rows of {lanes}, cut at {cut}");
                        let differ = plain(&y).iter().zip(plain(&want)).position(|(got, want)| *got != want);
                        assert!(differ.is_none(), "{what}, {start:?}: element {differ:?} of {y:?}, needed {want:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn sums_of_rounded_numbers_are_never_denormal() {
    let (x, w) = (draw("small", 80_000, 1), draw("small", 80_000, 2));
    let mut n_near = 0;
    for (x, w) in x.chunks(40).zip(w.chunks(40)) {
        let mut acc = 0.0_f32;
        for (x, w) in x.iter().zip(w) {
            acc = round(*x).mul_add(round(*w), acc);
            assert!(acc == 0.0 || acc.is_normal(), "{acc:e} after {x:e} x {w:e}");
            n_near += usize::from(acc != 0.0 && acc.abs() < 256.0 * f32::MIN_POSITIVE);
        }
    }
    assert!(n_near > 20, "only {n_near} sums came near the edge");
}

#[test]
fn bf16_products_are_one_chain_with_and_without_the_instruction() {
    for (rows, k, scale) in [(1, 2, 1.0), (5, 63, 1.0), (13, 801, 1.0), (250, 40, 1.0), (9, 64, 1e-16), (9, 64, 2e-17)]
    {
        let mut w = weights(fused(k), 1);
        w.data_mut().iter_mut().for_each(|v| *v *= scale);
        let x: Vec<f32> = numbers(rows * k, 7).iter().map(|v| v * scale).collect();
        let y0 = numbers(rows * 105, 9).iter().map(|v| v * scale * scale * 1e-6).collect::<Vec<f32>>();
        let want = [half_by_definition(rows, &x, &w, None), half_by_definition(rows, &x, &w, Some(&y0))];
        everywhere(|cpu| {
            let half = HalfPanels::of(cpu, &w);
            let terms = [Term { x: &x, ld: k, w: (&half).into() }];
            for (accumulate, want) in [false, true].into_iter().zip(&want) {
                let mut y = y0.clone();
                linear(cpu, rows, &terms, &mut y, 105, accumulate);
                assert_eq!(bits(&y), bits(want), "{rows} x {k} at {scale}, accumulating {accumulate} {cpu:?}");
            }
        });
    }
}

#[test]
fn an_adapter_continues_a_bf16_chain_in_f32_and_rows_do_not_meet() {
    let (rows, k) = (70, 64);
    let (w, b) = (weights(fused(k), 1), weights(adapter(4), 500));
    let (x, t) = (numbers(rows * k, 7), numbers(rows * 8, 8));
    let mut want = half_by_definition(rows, &x, &w, None);
    let continued = by_definition(rows, &[Term { x: &t, ld: 8, w: (&b).into() }], 105, &want, true);
    for r in 0..rows {
        for o in (0..70).chain(103..105) {
            want[r * 105 + o] = continued[r * 105 + o];
        }
    }
    everywhere(|cpu| {
        let half = HalfPanels::of(cpu, &w);
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
    for (rows, k) in [(7, 71), (3, 200), (2, 1)] {
        let w = weights(fused(k), 1);
        let mut rounded = w.zeros_like();
        for (r, v) in rounded.data_mut().iter_mut().zip(w.data()) {
            *r = round(*v);
        }
        let dy = numbers(rows * 105, 3);
        everywhere(|cpu| {
            let half = HalfPanels::of(cpu, &w);
            let (mut got, mut want) = (vec![0.0; rows * k], vec![1.0; rows * k]);
            linear_back(cpu, rows, &[Term { x: &dy, ld: 105, w: (&half).into() }], &mut got, k, false);
            linear_back(cpu, rows, &[Term { x: &dy, ld: 105, w: (&rounded).into() }], &mut want, k, false);
            assert_eq!(bits(&got), bits(&want), "{rows} x {k} {cpu:?}");
        });
    }
}

#[test]
fn a_refreshed_matrix_is_the_matrix_rounded_on_every_vector_set() {
    for k in [1, 2, 33] {
        let (old, mut new) = (weights(fused(k), 1), weights(fused(k), 900));
        new.data_mut().iter_mut().zip(draw("any", 4000, 5)).for_each(|(w, v)| *w = v);
        let want: Vec<Vec<u32>> = new
            .panels()
            .iter()
            .map(|p| {
                let data = new.panel_data(p);
                let at = |i: usize, o: usize| if i < p.k { u32::from(to_bf16(data[i * p.lanes + o])) } else { 0 };
                (0..p.k).step_by(2).flat_map(|i| (0..p.lanes).map(move |o| at(i, o) << 16 | at(i + 1, o))).collect()
            })
            .collect();
        everywhere(|cpu| {
            let mut half = HalfPanels::of(cpu, &old);
            half.refresh(cpu, &new);
            let got: Vec<&[u32]> = half.panels().iter().map(|p| half.panel_data(p)).collect();
            assert_eq!(got, want, "{k} inputs {cpu:?}");
        });
    }
}

#[test]
fn rounding_to_bf16_is_to_nearest_even_and_takes_what_is_below_its_least_for_zero() {
    let least = 2.0_f32.powi(-56);
    for (x, want) in [
        (1.0, 1.0_f32),
        (1.0 + 1.0 / 256.0, 1.0),
        (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
        (least, least),
        (least * (1.0 - 1.0 / 1024.0), least),
        (least * (1.0 - 1.0 / 256.0), 0.0),
        (-least / 2.0, -0.0),
        (-2.5e-39, -0.0),
        (f32::INFINITY, f32::INFINITY),
        (f32::MAX, f32::INFINITY),
    ] {
        assert_eq!(round(x).to_bits(), want.to_bits(), "{x}");
    }
    assert!([f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)].into_iter().all(|v| round(v).is_nan()));
}
