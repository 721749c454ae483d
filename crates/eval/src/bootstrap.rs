//! How far a mean over seeds and tasks may be from the truth.

use episode::random::Stream;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::Interval;

/// Resamples; with these 2.5 % and 97.5 % are whole ranks.
const RESAMPLES: u64 = 3999;

/// The 95 % interval of the mean of a table with a row for each seed and a column for each task: seeds and tasks are both
/// drawn anew, with replacement and independently, and the middle 95 % of the means are kept.
///
/// - Shapes: rows of equal length.
/// - Holds: the same table and stream give the same bits; with one row only columns vary, and nothing is said about other
///   seeds. Slightly wide in the tasks' part and, with few rows, narrow in the seeds' part.
/// - Errors: `None` for an empty table.
/// - Source: crossed arrays, A. B. Owen, Ann. Appl. Stat. 1 (2007) 386–411; percentile interval, Efron & Tibshirani, An
///   Introduction to the Bootstrap (1993), ch. 13.
pub fn crossed_bootstrap(table: &[Vec<f64>], stream: Stream) -> Option<Interval> {
    let n_rows = table.len() as u64;
    let n_columns = table.iter().map(Vec::len).min()? as u64;
    if n_columns == 0 {
        return None;
    }
    let mut means: Vec<f64> = (0..RESAMPLES).map(|i| resampled(table, n_rows, n_columns, stream, i)).collect();
    means.sort_by(f64::total_cmp);
    let rank = |share: f64| ((RESAMPLES + 1) as f64 * share) as usize - 1;
    Some(Interval { low: means[rank(0.025)], high: means[rank(0.975)] })
}

/// The mean of one resample; resample `i` reads its own stretch of the stream.
fn resampled(table: &[Vec<f64>], n_rows: u64, n_columns: u64, stream: Stream, i: u64) -> f64 {
    let first = i * (n_rows + n_columns);
    let mut times = vec![0_u32; n_columns as usize];
    for draw in 0..n_columns {
        times[stream.below(first + n_rows + draw, n_columns) as usize] += 1;
    }
    let mut sum = 0.0;
    for draw in 0..n_rows {
        let row = &table[stream.below(first + draw, n_rows) as usize];
        sum += row.iter().zip(&times).map(|(value, n)| value * f64::from(*n)).sum::<f64>();
    }
    sum / (n_rows * n_columns) as f64
}

/// The mean of a few values, such as one a seed, with its 95 % interval by Student's t; no interval of fewer than two.
///
/// - Errors: `None` without values.
/// - Source: Student, Biometrika 6 (1908) 1–25.
pub fn mean_with_interval(values: &[f64]) -> Option<(f64, Option<Interval>)> {
    let n = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let spread = (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0)).sqrt();
    let interval = StudentsT::new(0.0, 1.0, n - 1.0).ok().map(|student| {
        let half = student.inverse_cdf(0.975) * spread / n.sqrt();
        Interval { low: mean - half, high: mean + half }
    });
    Some((mean, interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream::new("test", &[1])
    }

    #[test]
    fn equal_values_leave_nothing_open() {
        let got = crossed_bootstrap(&[vec![0.25; 7], vec![0.25; 7]], stream()).unwrap();
        assert_eq!((got.low, got.high), (0.25, 0.25));
        assert_eq!(crossed_bootstrap(&[], stream()), None);
        assert_eq!(crossed_bootstrap(&[vec![]], stream()), None);
    }

    /// One row of a hundred coins, half of them up: the mean of a resample is a binomial share, whose middle 95 % reach from
    /// 40 to 60 of 100.
    #[test]
    fn one_row_gives_the_quantiles_of_the_binomial() {
        let coins: Vec<f64> = (0..100).map(|i| f64::from(i % 2)).collect();
        let got = crossed_bootstrap(&[coins], stream()).unwrap();
        assert!((got.low - 0.40).abs() < 0.0101 && (got.high - 0.60).abs() < 0.0101, "{got:?}");
    }

    /// Rows that differ and columns that do not: 0, ½ and 1 with chances ¼, ½ and ¼, so the interval is all of it.
    #[test]
    fn seeds_that_differ_widen_the_interval_however_many_tasks_agree() {
        let got = crossed_bootstrap(&[vec![0.0; 500], vec![1.0; 500]], stream()).unwrap();
        assert_eq!((got.low, got.high), (0.0, 1.0));
    }

    #[test]
    fn the_same_stream_gives_the_same_bits_and_another_one_does_not() {
        let table: Vec<Vec<f64>> =
            (0..3).map(|s| (0..40).map(|t| f64::from((s * 7 + t * 13) % 5) / 10.0).collect()).collect();
        let got = crossed_bootstrap(&table, stream()).unwrap();
        assert_eq!(crossed_bootstrap(&table, stream()), Some(got));
        assert_ne!(crossed_bootstrap(&table, Stream::new("test", &[2])), Some(got));
        // The three rows' means differ by less than 0.01 and tasks dominate: near ±1.96 · sd/√40 = ±0.044 around 0.2.
        assert!((got.high - got.low - 0.088).abs() < 0.03, "{got:?}");
    }

    /// t of 2 degrees of freedom at 97.5 % is 4.302 653, of 4 it is 2.776 445.
    #[test]
    fn the_interval_of_a_few_values_is_students() {
        let check = |values: &[f64], t: f64| {
            let n = values.len() as f64;
            let (mean, interval) = mean_with_interval(values).unwrap();
            let spread = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
            let half = interval.unwrap().high - mean;
            assert!((half - t * spread / n.sqrt()).abs() < 1e-6, "{values:?}: {half}");
        };
        check(&[0.1, 0.2, 0.3], 4.302_653);
        check(&[0.0, 0.0, 1.0, 1.0, 1.0], 2.776_445);
        assert_eq!(mean_with_interval(&[0.5]), Some((0.5, None)));
        assert_eq!(mean_with_interval(&[]), None);
        assert_eq!(mean_with_interval(&[0.5, 0.5]), Some((0.5, Some(Interval { low: 0.5, high: 0.5 }))));
    }
}
