//! Reductions inside a row: sixteen interleaved partial results and one fixed tree, whatever the vector width.

/// Number of interleaved partial results.
pub const LANES: usize = 16;

/// Folds sixteen partial sums: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
#[inline(always)]
pub fn tree(mut lane: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lane[i] += lane[i + width];
        }
        width /= 2;
    }
    lane[0]
}

/// Σ f(i) over `0..n`, element `i` in lane `i mod 16`, each lane ascending.
#[inline(always)]
pub fn fold(n: usize, mut step: impl FnMut(usize, f32) -> f32) -> f32 {
    let mut lane = [0.0_f32; LANES];
    let whole = n / LANES * LANES;
    let mut i = 0;
    while i < whole {
        for (j, l) in lane.iter_mut().enumerate() {
            *l = step(i + j, *l);
        }
        i += LANES;
    }
    for (j, l) in lane.iter_mut().enumerate().take(n - whole) {
        *l = step(whole + j, *l);
    }
    tree(lane)
}

/// Σ xᵢ.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    fold(x.len(), |i, acc| acc + x[i])
}

/// Σ xᵢ yᵢ, each product fused into its lane.
#[inline(always)]
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    let y = &y[..x.len()];
    fold(x.len(), |i, acc| x[i].mul_add(y[i], acc))
}

/// The largest element; −∞ of an empty row. NaN is ignored, callers check for it.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut lane = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (l, v) in lane.iter_mut().zip(chunk) {
            *l = if *v > *l { *v } else { *l };
        }
    }
    for (l, v) in lane.iter_mut().zip(rest) {
        *l = if *v > *l { *v } else { *l };
    }
    lane.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_follows_its_lanes_and_tree() {
        // 1e8 swallows a 1 added to it in f32: lane 0 holds 1e8 and then −1e8 before the tree adds lane 8's 1.
        let mut x = vec![0.0; 17];
        x[0] = 1e8;
        x[16] = -1e8;
        x[8] = 1.0;
        assert_eq!(sum(&x), 1.0);
        assert_eq!(x.iter().sum::<f32>(), 0.0);
    }

    #[test]
    fn the_tree_folds_halves_and_no_other_way() {
        let l: [f32; LANES] = std::array::from_fn(|i| ((i * 7919 + 9) % 1009) as f32 / 9.0);
        let by_eight: [f32; 8] = std::array::from_fn(|i| l[i] + l[i + 8]);
        let by_four: [f32; 4] = std::array::from_fn(|i| by_eight[i] + by_eight[i + 4]);
        let want = (by_four[0] + by_four[2]) + (by_four[1] + by_four[3]);
        assert_eq!(tree(l).to_bits(), want.to_bits());
        // The values tell the orders apart.
        let up = l.iter().sum::<f32>();
        let down = l.iter().rev().sum::<f32>();
        assert!(up != want && down != want && up != down, "{up} {want} {down}");
    }

    #[test]
    fn max_and_dot_of_any_length() {
        for n in 0..40 {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(max(&x), if n == 0 { f32::NEG_INFINITY } else { n as f32 - 1.0 });
            let want: f32 = (0..n).map(|i| (i * i) as f32).sum();
            assert_eq!(dot(&x, &x), want);
        }
    }
}
