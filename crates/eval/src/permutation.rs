//! Whether paired differences could be chance, without any assumption about how they are spread.

/// Two-sided p-value that paired differences come from two alike sides: under that, each difference is as likely with the
/// other sign, and the p-value is the share of all 2ⁿ choices of signs whose sum lies at least as far from 0.
///
/// - Units: whole numbers, such as attempts solved by one side less those by the other, one for each task.
/// - Holds: exact, every choice of signs counted; symmetric; 1 without a difference; with differences of −1, 0 and 1 it is
///   McNemar's exact test.
/// - Source: Fisher, The Design of Experiments (1935), § 21; Pitman, Suppl. J. R. Stat. Soc. 4 (1937) 119–130.
pub fn sign_flip(differences: &[i64]) -> f64 {
    let sizes: Vec<usize> = differences.iter().map(|d| d.unsigned_abs() as usize).filter(|d| *d > 0).collect();
    let seen = differences.iter().sum::<i64>().unsigned_abs() as usize;
    let all: usize = sizes.iter().sum();
    // Chance of each sum, from −all at place 0 to all at place 2·all, after the differences so far.
    let mut chance = vec![0.0_f64; 2 * all + 1];
    chance[all] = 1.0;
    let mut reach = 0;
    for size in sizes {
        let mut next = vec![0.0; 2 * all + 1];
        for place in all - reach..=all + reach {
            let half = 0.5 * chance[place];
            if half > 0.0 {
                next[place - size] += half;
                next[place + size] += half;
            }
        }
        reach += size;
        chance = next;
    }
    let far = |(place, _): &(usize, &f64)| place.abs_diff(all) >= seen;
    chance.iter().enumerate().filter(far).map(|(_, p)| p).sum::<f64>().min(1.0)
}

/// The smallest p-value that [`sign_flip`] can give with `n` differences.
pub fn smallest_sign_flip(n: usize) -> f64 {
    if n == 0 { 1.0 } else { 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX) - 1) }
}

/// Holm's adjusted p-values, in the order given: a row is shown at level α when its adjusted value is at most α, and then
/// the chance of any false row among all of them is at most α, whatever the rows have to do with each other.
///
/// - Holds: at least the value itself, at most 1, in the same order of size.
/// - Source: Holm, Scand. J. Stat. 6 (1979) 65–70.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut largest = 0.0_f64;
    for (rank, index) in order.into_iter().enumerate() {
        let left = (p_values.len() - rank) as f64;
        largest = largest.max((left * p_values[index]).min(1.0));
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcnemar_exact;
    use proptest::prelude::*;

    fn check(differences: &[i64], want: f64) {
        let got = sign_flip(differences);
        assert!((got - want).abs() < 1e-12, "{differences:?}: {got}, needed {want}");
    }

    /// The share of all signs, counted one by one.
    fn counted(differences: &[i64]) -> f64 {
        let seen = differences.iter().sum::<i64>().abs();
        let n = differences.len();
        let sum = |signs: u32| -> i64 {
            differences.iter().enumerate().map(|(i, d)| if signs >> i & 1 == 1 { -d } else { *d }).sum()
        };
        (0..1_u32 << n).filter(|signs| sum(*signs).abs() >= seen).count() as f64 / f64::from(1_u32 << n)
    }

    #[test]
    fn sign_flip_gives_known_values() {
        check(&[], 1.0);
        check(&[0, 0], 1.0);
        check(&[1], 1.0);
        check(&[3, 2, 4], 0.25);
        check(&[-3, -2, -4], 0.25);
        // Sums of ±1 ±2 ±3 at least 4 from 0: ±4 and ±6.
        check(&[-1, 2, 3], 4.0 / 8.0);
        assert_eq!(smallest_sign_flip(3), 0.25);
        assert_eq!(smallest_sign_flip(0), 1.0);
    }

    /// Darwin's maize as Fisher tested it, in eighths of an inch: 863 of 32 768 choices of signs reach the sum on its side.
    #[test]
    fn sign_flip_gives_fishers_own_example() {
        let darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48];
        check(&darwin, 2.0 * 863.0 / 32768.0);
    }

    #[test]
    fn many_tasks_neither_overflow_nor_lose_the_tail() {
        let all_better = vec![1; 900];
        let p = sign_flip(&all_better);
        assert!(p > 0.0 && (p.log2() + 899.0).abs() < 1e-6, "{p}");
        assert_eq!(sign_flip(&[i64::from(u16::MAX)]), 1.0);
    }

    /// Sorted 0.01, 0.01, 0.03, 0.04 of four: 4·0.01, 3·0.01 raised to it, 2·0.03, 0.04 raised to that.
    #[test]
    fn holm_multiplies_by_what_is_left_and_never_falls() {
        let got = holm(&[0.04, 0.01, 0.03, 0.01]);
        let want = [0.06, 0.04, 0.06, 0.04];
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12), "{got:?}");
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.7, 0.6]), [1.0, 1.0]);
    }

    proptest! {
        #[test]
        fn sign_flip_is_the_count_over_all_signs(d in prop::collection::vec(-4_i64..5, 0..11)) {
            prop_assert!((sign_flip(&d) - counted(&d)).abs() < 1e-12);
            let turned: Vec<i64> = d.iter().map(|d| -d).collect();
            prop_assert_eq!(sign_flip(&turned), sign_flip(&d));
        }

        #[test]
        fn with_ones_it_is_mcnemars_exact_test(lost in 0_u64..60, gained in 0_u64..60, same in 0_usize..9) {
            let ones = |n: u64, d: i64| (0..n).map(move |_| d);
            let d: Vec<i64> = ones(lost, -1).chain(ones(gained, 1)).chain(std::iter::repeat_n(0, same)).collect();
            prop_assert!((sign_flip(&d) - mcnemar_exact(lost, gained)).abs() < 1e-10);
        }

        #[test]
        fn holm_lies_between_the_value_and_bonferronis(p in prop::collection::vec(0.0_f64..1.0, 1..20)) {
            for (adjusted, p_value) in holm(&p).iter().zip(&p) {
                prop_assert!(adjusted >= p_value && *adjusted <= (p.len() as f64 * p_value).min(1.0) + 1e-12);
            }
        }
    }
}
