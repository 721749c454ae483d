use super::packed::{Segment, backward, forward};
use super::paged::{PAGE, Scratch, attend, page_len, store};
use super::*;
use crate::{Cpu, Isa};

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn shapes() -> Vec<Heads> {
    let heads = |n_q, n_kv, dim, window| Heads { n_q, n_kv, dim, scale: 0.3, window };
    vec![heads(6, 2, 64, None), heads(3, 3, 12, None), heads(4, 1, 130, None), heads(4, 2, 24, Some(5))]
}

/// Rows of one sequence through pages, one by one.
fn by_pages(isa: Isa, heads: &Heads, qkv: &[f32], rows: &[usize]) -> Vec<Vec<f32>> {
    let (width, len) = (heads.width(), page_len(heads));
    let n_pages = rows.len().div_ceil(PAGE);
    let (mut k, mut v) = (Buffer::zeroed(n_pages * len), Buffer::zeroed(n_pages * len));
    let mut scratch = Scratch::default();
    let mut all = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let row = &qkv[row * width..(row + 1) * width];
        let page = i / PAGE * len;
        store(heads, row, &mut k[page..page + len], &mut v[page..page + len], i % PAGE);
        let mut out = vec![0.0; heads.n_q * heads.dim];
        let pages = k.chunks(len).zip(v.chunks(len)).take(i / PAGE + 1);
        attend(isa, heads, row, i + 1, pages, &mut out, &mut scratch);
        all.push(out);
    }
    all
}

use crate::Buffer;

#[test]
fn packed_equals_paged_and_shared_equals_private_on_every_vector_set() {
    for heads in shapes() {
        let (prompt, samples) = (37, [1, 8, 40]);
        let n: usize = prompt + samples.iter().sum::<usize>();
        let qkv = numbers(n * heads.width(), 1);
        let ldo = heads.n_q * heads.dim;
        let mut segments = vec![Segment { first: 0, len: prompt, parent: None }];
        for len in samples {
            let first = segments.iter().map(|s| s.len).sum();
            segments.push(Segment { first, len, parent: Some(0) });
        }
        let mut want: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            for n_threads in [1, 2] {
                let cpu = Cpu::new(isa, n_threads).unwrap();
                let mut out = vec![0.0; n * ldo];
                forward(&cpu, &heads, std::slice::from_ref(&segments), (&qkv, heads.width()), (&mut out, ldo));
                let got = bits(&out);
                assert_eq!(want.get_or_insert_with(|| got.clone()), &got, "{isa} {n_threads}");
                for s in &segments[1..] {
                    let rows: Vec<usize> = (0..prompt).chain(s.first..s.first + s.len).collect();
                    let paged = by_pages(isa, &heads, &qkv, &rows);
                    for (row, paged) in rows.iter().zip(&paged) {
                        assert_eq!(bits(&out[row * ldo..(row + 1) * ldo]), bits(paged), "row {row} {isa} {heads:?}");
                    }
                }
            }
        }
    }
}

/// Plain attention in double precision, for values and for finite differences.
fn reference(heads: &Heads, qkv: &[f64], rows: &[usize], weights: &[f64]) -> f64 {
    let (w, ldo) = (heads.width(), heads.n_q * heads.dim);
    let mut total = 0.0;
    for (i, row) in rows.iter().enumerate() {
        for h in 0..heads.n_q {
            let kv = h / heads.per_kv();
            let q = &qkv[row * w + heads.q_at(h)..][..heads.dim];
            let first = heads.first_key(i);
            let s: Vec<f64> = rows[first..=i]
                .iter()
                .map(|j| {
                    let k = &qkv[j * w + heads.k_at(kv)..][..heads.dim];
                    q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * f64::from(heads.scale)
                })
                .collect();
            let sum: f64 = s.iter().map(|v| v.exp()).sum();
            for (j, s) in rows[first..=i].iter().zip(&s) {
                let v = &qkv[j * w + heads.v_at(kv)..][..heads.dim];
                let g = &weights[row * ldo + heads.q_at(h)..][..heads.dim];
                total += s.exp() / sum * v.iter().zip(g).map(|(a, b)| a * b).sum::<f64>();
            }
        }
    }
    total
}

#[test]
fn gradients_match_finite_differences_through_a_shared_prompt() {
    for heads in shapes() {
        let (prompt, own) = (4, [3, 2]);
        let n = 9;
        let (width, ldo) = (heads.width(), heads.n_q * heads.dim);
        let qkv = numbers(n * width, 3);
        let dout = numbers(n * ldo, 4);
        let segments = vec![
            Segment { first: 0, len: prompt, parent: None },
            Segment { first: 4, len: own[0], parent: Some(0) },
            Segment { first: 7, len: own[1], parent: Some(0) },
        ];
        let cpu = Cpu::new(Isa::best(), 2).unwrap();
        let (mut out, mut dqkv) = (vec![0.0; n * ldo], vec![0.0; n * width]);
        let groups = std::slice::from_ref(&segments);
        forward(&cpu, &heads, groups, (&qkv, width), (&mut out, ldo));
        backward(&cpu, &heads, groups, (&qkv, width), (&out, &dout, ldo), (&mut dqkv, width));
        let (x, g): (Vec<f64>, Vec<f64>) =
            (qkv.iter().map(|v| f64::from(*v)).collect(), dout.iter().map(|v| f64::from(*v)).collect());
        // Prompt rows count once, though two sequences pass through them.
        let mut prompt_only = g.clone();
        prompt_only[prompt * ldo..].fill(0.0);
        let mut own_only = g.clone();
        own_only[..prompt * ldo].fill(0.0);
        let loss = |x: &[f64]| {
            let first: Vec<usize> = (0..7).collect();
            let second: Vec<usize> = (0..4).chain(7..9).collect();
            reference(&heads, x, &first[..4], &prompt_only)
                + reference(&heads, x, &first, &own_only)
                + reference(&heads, x, &second, &own_only)
        };
        for i in (0..x.len()).step_by(7) {
            let (mut up, mut down) = (x.clone(), x.clone());
            up[i] += 1e-5;
            down[i] -= 1e-5;
            let want = (loss(&up) - loss(&down)) / 2e-5;
            // Single precision against a difference in double: rounding of the forward pass only.
            assert!((want - f64::from(dqkv[i])).abs() < 2e-5 * (1.0 + want.abs()), "{heads:?} {i}: {want} {}", dqkv[i]);
        }
    }
}

#[test]
fn gradients_have_one_set_of_bits_and_ignore_neighbours() {
    for heads in shapes() {
        let (width, ldo) = (heads.width(), heads.n_q * heads.dim);
        let n = 130;
        let (qkv, dout) = (numbers(n * width, 5), numbers(n * ldo, 6));
        let group = vec![
            Segment { first: 0, len: 50, parent: None },
            Segment { first: 50, len: 49, parent: Some(0) },
            Segment { first: 99, len: 1, parent: Some(0) },
        ];
        let other = vec![Segment { first: 100, len: 30, parent: None }];
        let run = |isa, threads, groups: &[Vec<Segment>]| {
            let cpu = Cpu::new(isa, threads).unwrap();
            let (mut out, mut dqkv) = (vec![0.0; n * ldo], vec![0.0; n * width]);
            forward(&cpu, &heads, groups, (&qkv, width), (&mut out, ldo));
            backward(&cpu, &heads, groups, (&qkv, width), (&out, &dout, ldo), (&mut dqkv, width));
            bits(&dqkv)
        };
        let both = [group.clone(), other];
        let want = run(Isa::Scalar, 1, &both);
        for isa in Isa::available() {
            assert!(run(isa, 2, &both) == want, "{isa} {heads:?}");
            let alone = run(isa, 2, std::slice::from_ref(&group));
            assert!(alone[..100 * width] == want[..100 * width], "{isa} alone");
        }
    }
}
