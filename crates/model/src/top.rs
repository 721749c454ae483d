//! The most likely tokens of a row.
//!
//! V vocabulary · k how many

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A token as one of the k best so far; the greatest is the one to give up next.
struct Candidate {
    z: f32,
    token: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        other.z.total_cmp(&self.z).then(self.token.cmp(&other.token))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The k tokens with the largest logits, the largest first, the lowest id first among equal ones.
///
/// - Shapes: `z [V]`; fewer than `k` when the row has fewer.
/// - Holds: one answer whatever the machine; one pass over the row, and room for k tokens.
pub(crate) fn most_likely(z: &[f32], k: usize) -> Vec<u32> {
    let mut best: BinaryHeap<Candidate> = BinaryHeap::with_capacity(k.min(z.len()));
    let mut least = f32::NEG_INFINITY;
    for (token, z) in z.iter().enumerate() {
        // Tokens come by ascending id, so that an equal one that comes later is the one to leave out.
        if best.len() == k {
            if *z <= least || k == 0 {
                continue;
            }
            best.pop();
        }
        // Adding 0 makes the two zeros one.
        best.push(Candidate { z: z + 0.0, token: token as u32 });
        if best.len() == k {
            least = best.peek().map_or(f32::NEG_INFINITY, |c| c.z);
        }
    }
    best.into_sorted_vec().into_iter().map(|c| c.token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(z: &[f32], k: usize, want: &[u32]) {
        assert_eq!(most_likely(z, k), want, "{k} of {z:?}");
    }

    #[test]
    fn the_largest_come_first_and_ties_keep_the_lower_id() {
        check(&[0.1, 3.0, 2.0, 3.0, -1.0], 3, &[1, 3, 2]);
        check(&[1.0, 1.0, 1.0, 1.0], 2, &[0, 1]);
        check(&[0.0, 2.0, 1.0, 1.0, 1.0, 5.0], 3, &[5, 1, 2]);
        check(&[-0.0, 0.0, -0.0], 2, &[0, 1]);
        check(&[2.0, 1.0], 5, &[0, 1]);
        check(&[2.0, 1.0], 0, &[]);
        check(&[-1e30, 4.0, -1e30, 3.0], 2, &[1, 3]);
    }

    #[test]
    fn any_number_of_them_is_the_beginning_of_the_sorted_row() {
        let z: Vec<f32> = (0..500).map(|i| ((i * 7919) % 61) as f32 / 7.0 - 4.0).collect();
        let mut order: Vec<u32> = (0..500).collect();
        order.sort_by(|a, b| z[*b as usize].total_cmp(&z[*a as usize]).then(a.cmp(b)));
        for k in [1, 2, 9, 100, 499, 500] {
            check(&z, k, &order[..k]);
        }
    }

    #[test]
    fn a_row_that_is_not_finite_still_answers() {
        assert_eq!(most_likely(&[f32::NAN, 1.0, f32::NAN, f32::INFINITY], 2).len(), 2);
    }
}
